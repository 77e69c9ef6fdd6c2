package redlock_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/internal/redistest"
	"github.com/caddy-redlock/caddy-redlock/redlock"
)

const (
	holderEnv = "REDLOCK_TEST_HOLDER" // the URLs of the masters, in the holder's process
	holderTTL = 6 * time.Second
)

// fencedStore refuses writes with a smaller fence than it has seen.
type fencedStore struct {
	mu      sync.Mutex
	largest uint64
	value   string
}

func (s *fencedStore) write(fence uint64, value string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if fence < s.largest {
		return false
	}
	s.largest, s.value = fence, value
	return true
}

// TestHelperHolder is not a test but the holder's process in TestPausedHolder: it takes the lock and, on a line of
// input, writes with its fence without checking the lock.
func TestHelperHolder(t *testing.T) {
	urls := os.Getenv(holderEnv)
	if urls == "" {
		t.Skip("run by TestPausedHolder")
	}
	l := newLocker(t, strings.Split(urls, ","), redlock.WithTTL(holderTTL), redlock.WithTimeout(holderTTL/2))
	lock := mustLock(t, l, "key")
	fmt.Println("locked", lock.Fence(), "by")
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		fmt.Println("write", lock.Fence(), in.Text())
		fmt.Println("lost", errors.Is(ended(t, lock.Context()), redlock.ErrLost), errors.Is(lock.Err(), redlock.ErrLost))
	}
}

// holder is another process that holds the lock.
type holder struct {
	t   *testing.T
	cmd *exec.Cmd
	in  *os.File
	out *bufio.Scanner
}

func startHolder(t *testing.T, servers []*redistest.Server) *holder {
	t.Helper()
	in, ours, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	h := &holder{t: t, in: ours, cmd: exec.Command(os.Args[0], "-test.run=^TestHelperHolder$", "-test.timeout=2m")}
	h.cmd.Env = append(os.Environ(), holderEnv+"="+strings.Join(redistest.URLs(servers), ","))
	h.cmd.Stdin, h.cmd.Stderr = in, os.Stderr
	out, err := h.cmd.StdoutPipe()
	if err == nil {
		err = h.cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	_ = in.Close()
	h.out = bufio.NewScanner(out)
	t.Cleanup(func() {
		_ = ours.Close()
		_ = h.cmd.Process.Signal(syscall.SIGCONT)
		for h.out.Scan() { // to the end of its output
		}
		if err := h.cmd.Wait(); err != nil {
			t.Errorf("the holder's process: %v", err)
		}
	})
	return h
}

// line returns the two words that follow the given one, in the holder's next line that begins with it.
func (h *holder) line(word string) (first, second string) {
	h.t.Helper()
	for h.out.Scan() {
		if _, err := fmt.Sscanf(h.out.Text(), word+" %s %s", &first, &second); err == nil {
			return first, second
		}
	}
	h.t.Fatalf("the holder has ended without the line %q", word)
	return "", ""
}

func (h *holder) signal(sig os.Signal) {
	h.t.Helper()
	if err := h.cmd.Process.Signal(sig); err != nil {
		h.t.Fatal(err)
	}
}

// TestPausedHolder stops a holder's process for longer than its TTL, as a long garbage collection or
// a suspended machine does. Another takes over, and the fence keeps the first one's late write out.
func TestPausedHolder(t *testing.T) {
	t.Parallel()
	servers := redistest.Start(t, 3)
	l := newLocker(t, redistest.URLs(servers), redlock.WithTTL(holderTTL), redlock.WithTimeout(holderTTL/2))
	var store fencedStore
	write := func(fence, value string) bool {
		var n uint64
		if _, err := fmt.Sscan(fence, &n); err != nil {
			t.Fatal(err)
		}
		return store.write(n, value)
	}
	h := startHolder(t, servers)
	fence, _ := h.line("locked")
	if !write(fence, "first") {
		t.Fatal("the holder can't write")
	}
	for range 2 { // it works, and renews the lease
		time.Sleep(holderTTL)
		if lock := tryLock(t, l, "key"); lock != nil {
			t.Fatal("another gets the lock while its holder lives")
		}
	}
	h.signal(syscall.SIGSTOP)
	ctx, cancel := context.WithTimeout(t.Context(), bound+holderTTL)
	defer cancel()
	next, err := l.Lock(ctx, "key")
	if err != nil {
		t.Fatalf("the lock of a stopped holder: %v", err)
	}
	defer mustUnlock(t, next)
	if !store.write(next.Fence(), "second") {
		t.Fatalf("fence %d after %s: the new holder can't write", next.Fence(), fence)
	}
	if _, err := fmt.Fprintln(h.in, "late"); err != nil {
		t.Fatal(err)
	}
	h.signal(syscall.SIGCONT)
	fence, value := h.line("write")
	if value != "late" || write(fence, value) || store.value != "second" {
		t.Errorf("the late write with fence %s was taken: the store has %q, of fence %d", fence, store.value, store.largest)
	}
	if cause, err := h.line("lost"); cause != "true" || err != "true" {
		t.Errorf("the first holder's lock: its context ended with ErrLost: %s, Err is ErrLost: %s", cause, err)
	}
	if next.Err() != nil {
		t.Errorf("the second holder's lock: %v", next.Err())
	}
}
