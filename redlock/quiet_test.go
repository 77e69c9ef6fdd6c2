package redlock_test

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/caddy-redlock/caddy-redlock/internal/tests/redistest"
	"github.com/caddy-redlock/caddy-redlock/redlock"
)

const quietMasters = "REDLOCK_TEST_QUIET_MASTERS"

// TestNothingOnStandardError: a process that uses the library and sets no logger has nothing on its standard error from it,
// nor from go-redis, of masters that can't be reached, refuse, want a certificate or another password, hang up, hang from the beginning or
// later, or are killed while a call waits.
func TestNothingOnStandardError(t *testing.T) {
	if urls := os.Getenv(quietMasters); urls != "" {
		useMasters(t, strings.Fields(urls))
		return
	}
	t.Parallel()
	servers := redistest.Start(t, 3)
	server, hangs, never := servers[0], servers[1], servers[2]
	never.Pause()
	guarded := redistest.Start(t, 1, "--requirepass", "secret")[0]
	hangsUp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = hangsUp.Close() }()
	go func() {
		for {
			conn, err := hangsUp.Accept()
			if err != nil {
				return
			}
			_ = conn.Close()
		}
	}()
	addr := hangsUp.Addr().String()
	authority := redistest.NewAuthority(t)
	_, secure := authority.Start(1) // which wants a certificate
	bad := []string{dead(t), "rediss://" + addr, "redis://" + addr, "redis://user:password@" + server.Addr() + "/1",
		"redis://:wrong@" + guarded.Addr(), "redis://:secret@" + guarded.Addr(), guarded.URL(), never.URL(), hangs.URL()}
	worker := exec.Command(os.Args[0], "-test.run=^TestNothingOnStandardError$")
	worker.Env = append(os.Environ(), "SSL_CERT_FILE="+authority.File, quietMasters+"="+strings.Join(append(bad, secure[0], server.URL()), " "))
	var out, errs bytes.Buffer
	worker.Stdout, worker.Stderr = &out, &errs
	if err := worker.Start(); err != nil {
		t.Fatal(err)
	}
	time.Sleep(time.Second)
	server.Kill()
	hangs.Pause()
	time.Sleep(500 * time.Millisecond)
	server.Restart()
	time.Sleep(500 * time.Millisecond)
	hangs.Resume()
	if err := worker.Wait(); err != nil {
		t.Errorf("%v\n%s", err, out.String())
	}
	if errs.Len() > 0 {
		t.Errorf("on standard error:\n%s", errs.String())
	}
}

// useMasters has a Locker on each master, and one on a cluster at each, try for a lock for a time.
func useMasters(t *testing.T, urls []string) {
	var calls sync.WaitGroup
	for _, url := range urls {
		options, err := redis.ParseURL(url)
		if err != nil {
			t.Fatal(err)
		}
		client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{options.Addr}, TLSConfig: options.TLSConfig})
		cluster, err := redlock.NewMaster(client)
		if err != nil {
			t.Fatal(err)
		}
		single, err := dial(url)
		if err != nil {
			t.Fatal(err)
		}
		for _, masters := range [][]redlock.Master{single, {cluster}} {
			calls.Go(func() {
				l, err := redlock.New(masters, redlock.WithRestartGuard(0), redlock.WithTTL(time.Second))
				if err != nil {
					t.Error(err)
					return
				}
				var waits sync.WaitGroup
				for range 2 { // one that holds the lock, if it is had, and one that waits
					waits.Go(func() {
						ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
						defer cancel()
						for ctx.Err() == nil {
							if err := l.Do(ctx, "key", func(context.Context, *redlock.Lock) error { time.Sleep(50 * time.Millisecond); return nil }); err != nil {
								fmt.Println(masters[0], err)
							}
							time.Sleep(50 * time.Millisecond)
						}
					})
				}
				waits.Wait()
				_ = l.Close()
			})
		}
	}
	calls.Wait()
	eventually(t, bound, "all dials have ended", func() bool { return goleak.Find() == nil }) // which on a busy machine may compute for seconds
}

// dead is the URL of a port on which nobody listens.
func dead(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	return fmt.Sprint("redis://", l.Addr())
}
