//go:build unix

package agent_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/agent"
	"github.com/caddy-redlock/caddy-redlock/internal/tests/redistest"
	"github.com/caddy-redlock/caddy-redlock/redlock"
)

// BenchmarkLock takes and releases locks of three real masters in three ways, by turns 50 of each, as others use the machine, too: by the
// library; for a client in another process that says when by single bytes on a Unix socket, which is the least that any agent could do;
// and by an agent for such a client. The figures are medians for one lock; those of the CPU are without the masters and the client.
func BenchmarkLock(b *testing.B) {
	locker := newLocker(b, redistest.URLs(redistest.Start(b, 3)))
	dir := b.TempDir()
	l, err := net.Listen("unix", filepath.Join(dir, "agent"))
	if err != nil {
		b.Fatal(err)
	}
	serveOn(b, agent.New(locker), l)
	bytes, err := net.Listen("unix", filepath.Join(dir, "bytes"))
	if err != nil {
		b.Fatal(err)
	}
	go serveBytes(locker, bytes)
	defer func() { _ = bytes.Close() }()
	ways := []*struct {
		name              string
		take              func(n int) (client, took float64) // takes so many locks
		cpu, client, took []float64                          // µs
	}{
		{name: "library", take: func(n int) (client, took float64) { return 0, takeLocks(b, locker, n) }},
		{name: "bytes", take: startClient(b, filepath.Join(dir, "bytes"))},
		{name: "agent", take: startClient(b, filepath.Join(dir, "agent"))},
	}
	const block = 50
	for range b.N {
		for _, way := range ways {
			before := cpu()
			client, took := way.take(block)
			way.cpu = append(way.cpu, micros(cpu()-before)/block)
			way.client = append(way.client, client/block)
			way.took = append(way.took, took)
		}
	}
	for _, way := range ways {
		b.ReportMetric(median(way.cpu), way.name+"-cpu-µs")
		b.ReportMetric(median(way.took), way.name+"-p50-µs")
		b.ReportMetric(median(way.client), way.name+"-client-cpu-µs")
	}
	b.ReportMetric(0, "ns/op") // of all ways together, which says nothing
}

// takeLocks takes so many locks by the library, and returns the median time.
func takeLocks(b *testing.B, locker *redlock.Locker, n int) (took float64) {
	var all []float64
	for i := range n {
		start := time.Now()
		lock, err := locker.Lock(b.Context(), key(i))
		if err == nil {
			err = lock.Unlock()
		}
		if err != nil {
			b.Fatal(err)
		}
		all = append(all, micros(time.Since(start)))
	}
	return median(all)
}

func key(i int) string { return fmt.Sprintf("k%d", i) }

// serveBytes takes a lock at one byte, and releases it at the next. It answers each.
func serveBytes(locker *redlock.Locker, at net.Listener) {
	c, err := at.Accept()
	if err != nil {
		return
	}
	defer func() { _ = c.Close() }()
	said := make([]byte, 1)
	for i := 0; ; i++ {
		if _, err := c.Read(said); err != nil {
			return
		}
		lock, err := locker.Lock(context.Background(), key(i))
		if err != nil {
			return
		}
		_, _ = c.Write(said)
		_, err = c.Read(said)
		if unlock := lock.Unlock(); err != nil || unlock != nil {
			return
		}
		_, _ = c.Write(said)
	}
}

// benchSocket is the variable that makes this program the client of a BenchmarkLock, at this socket.
const benchSocket = "REDLOCK_BENCH_CLIENT"

// startClient starts a client at a socket. What it returns has it take so many locks, and returns its CPU time and the median time of a lock.
func startClient(b *testing.B, socket string) func(n int) (cpu, took float64) {
	client := exec.Command(os.Args[0])
	client.Env, client.Stderr = append(os.Environ(), benchSocket+"="+socket), os.Stderr
	orders, err := client.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	responses, err := client.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := client.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = orders.Close(); _ = client.Wait() })
	return func(n int) (cpu, took float64) {
		if _, err := fmt.Fprintln(orders, n); err != nil {
			b.Fatal(err)
		}
		if _, err := fmt.Fscanln(responses, &cpu, &took); err != nil {
			b.Fatal(err)
		}
		return cpu, took
	}
}

// runClient is the client: for each line of its input it takes and releases so many locks.
func runClient(socket string) error {
	c, err := net.Dial("unix", socket)
	if err != nil {
		return err
	}
	one := func(int) error {
		said := make([]byte, 1)
		for range 2 {
			if _, err := c.Write(said); err != nil {
				return err
			}
			if _, err := c.Read(said); err != nil {
				return err
			}
		}
		return nil
	}
	if filepath.Base(socket) == "agent" {
		one = func(i int) error { return lockByHTTP(c, key(i)) }
	}
	for {
		var n int
		if _, err := fmt.Scanln(&n); err == io.EOF {
			return nil
		}
		before := cpu()
		var took []float64
		for i := range n {
			start := time.Now()
			if err := one(i); err != nil {
				return err
			}
			took = append(took, micros(time.Since(start)))
		}
		fmt.Println(micros(cpu()-before), median(took))
	}
}

// lockByHTTP takes a lock over a kept connection, and releases it, as the small clients do.
func lockByHTTP(c net.Conn, key string) error {
	line := `{"key":"` + key + `"}` + "\n"
	request := fmt.Appendf(nil, "POST /v1/lock HTTP/1.1\r\nHost: redlock\r\nRedlock-Agent: 1\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n", len(line), line)
	response := make([]byte, 1024)
	for _, step := range []struct {
		send []byte
		end  string
	}{{request, "}\n\r\n"}, {[]byte("0\r\n\r\n"), "{\"released\":true}\n\r\n0\r\n\r\n"}} {
		if _, err := c.Write(step.send); err != nil {
			return err
		}
		for n := 0; !bytes.HasSuffix(response[:n], []byte(step.end)); {
			more, err := c.Read(response[n:])
			if err != nil {
				return fmt.Errorf("%w, after %q", err, response[:n])
			}
			n += more
		}
	}
	return nil
}

func micros(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

func median(all []float64) float64 {
	slices.Sort(all)
	return all[len(all)/2]
}

// cpu returns what the process has used.
func cpu() time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		panic(err) // every system knows that
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
