package jobs_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
	"github.com/riverqueue/river/rivertype"

	"github.com/caddy-redlock/caddy-redlock/examples/stacks/jobs"
)

// postgres starts a server of the test's own, and returns connections to it.
func postgres(t *testing.T) *pgxpool.Pool {
	t.Helper()
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/initdb")
	if len(found) == 0 {
		if os.Getenv("POSTGRES") == "required" {
			t.Fatal("no PostgreSQL in /usr/lib/postgresql")
		}
		t.Skip("needs PostgreSQL: make stacks")
	}
	bin := filepath.Dir(slices.Max(found))
	dir, err := os.MkdirTemp("", "river") // t.TempDir is in a folder of root
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	command := func(name string, args ...string) *exec.Cmd {
		cmd := exec.Command(filepath.Join(bin, name), args...)
		cmd.Dir = dir
		if os.Getuid() == 0 { // as which it doesn't run
			const nobody = 65534
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
			if err := os.Chown(dir, nobody, nobody); err != nil {
				t.Fatal(err)
			}
		}
		return cmd
	}
	if out, err := command("initdb", "--no-sync", "-A", "trust", "-U", "river", "-D", dir+"/data").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	server := command("postgres", "-F", "-D", dir+"/data", "-k", dir, "-c", "listen_addresses=")
	server.Stderr = t.Output()
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = server.Process.Signal(syscall.SIGINT) // ends its sessions
		_ = server.Wait()
	})
	pool, err := pgxpool.New(t.Context(), "host="+dir+" user=river database=postgres")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	for pool.Ping(t.Context()) != nil {
		time.Sleep(20 * time.Millisecond)
	}
	return pool
}

type invoiceArgs struct {
	Invoice string `json:"invoice"`
}

func (invoiceArgs) Kind() string { return "invoice" }

// TestRiver is TestAsynq with River.
func TestRiver(t *testing.T) {
	t.Parallel()
	pool := postgres(t)
	driver := riverpgxv5.New(pool)
	migrator, err := rivermigrate.New(driver, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := migrator.Migrate(t.Context(), rivermigrate.DirectionUp, nil); err != nil {
		t.Fatal(err)
	}
	var invoices invoices
	key := func(job *rivertype.JobRow) string { return "invoice:" + string(job.EncodedArgs) }
	var client *river.Client[pgx.Tx]
	for _, l := range machines(t, 2) {
		workers := river.NewWorkers()
		river.AddWorker(workers, river.WorkFunc(func(ctx context.Context, job *river.Job[invoiceArgs]) error {
			return invoices.send(ctx, job.Args.Invoice)
		}))
		worker, err := river.NewClient(driver, &river.Config{
			Queues: map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: 5}}, Workers: workers, JobTimeout: 5 * time.Minute,
			Middleware: []rivertype.Middleware{jobs.UniqueInRiver(l, key, time.Hour, 2*time.Minute)},
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := worker.Start(context.Background()); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = worker.Stop(context.Background()) })
		client = worker
	}
	for range 3 {
		for _, invoice := range []string{"1", "2", "3"} {
			if _, err := client.Insert(t.Context(), invoiceArgs{invoice}, &river.InsertOpts{MaxAttempts: 1}); err != nil {
				t.Fatal(err)
			}
		}
	}
	ended := river.NewJobListParams().States(rivertype.JobStateCompleted, rivertype.JobStateDiscarded)
	for n := 0; n < 9; time.Sleep(20 * time.Millisecond) {
		list, err := client.JobList(t.Context(), ended)
		if err != nil {
			t.Fatal(err)
		}
		n = len(list.Jobs)
	}
	invoices.requireSentOnce(t)
}
