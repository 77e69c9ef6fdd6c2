package redlock_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/internal/tests/redistest"
	"github.com/caddy-redlock/caddy-redlock/redlock"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
)

// narrows is a line to a server on which long results are held up, and nothing else.
type narrows struct {
	listener net.Listener
	server   string
	most     int           // bytes that a connection may carry in either direction
	open     chan struct{} // closed when it may carry more
	closed   atomic.Bool   // no connection can be made
	full     atomic.Int64  // directions of connections that have carried all that they may
	conns    sync.WaitGroup
}

func newNarrows(t *testing.T, server *redistest.Server, most int) *narrows {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	n := &narrows{listener: listener, server: server.Addr(), most: most, open: make(chan struct{})}
	n.conns.Go(n.accept)
	t.Cleanup(func() {
		_ = listener.Close()
		n.conns.Wait()
	})
	return n
}

// newNarrowsTo gives the URLs of lines to these servers.
func newNarrowsTo(t *testing.T, servers []*redistest.Server, most int) (lines []*narrows, urls []string) {
	t.Helper()
	for _, s := range servers {
		n := newNarrows(t, s, most)
		lines, urls = append(lines, n), append(urls, "redis://"+n.listener.Addr().String())
	}
	return lines, urls
}

func (n *narrows) accept() {
	for {
		client, err := n.listener.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", n.server)
		if err != nil || n.closed.Load() {
			_ = client.Close()
			if err == nil {
				_ = server.Close()
			}
			continue
		}
		over := make(chan struct{})
		end := sync.OnceFunc(func() {
			close(over)
			_ = client.Close()
			_ = server.Close()
		})
		n.conns.Go(func() { defer end(); n.carry(client, server, over) })
		n.conns.Go(func() { defer end(); n.carry(server, client, over) })
	}
}

func (n *narrows) carry(from io.Reader, to io.Writer, over <-chan struct{}) {
	if _, err := io.CopyN(to, from, int64(n.most)); err != nil {
		return
	}
	n.full.Add(1)
	select {
	case <-n.open:
		_, _ = io.Copy(to, from)
	case <-over:
	}
}

// TestLongResultsKeepNoLocksWaiting: while results are on their way to all masters, other locks are taken, renewed and freed.
func TestLongResultsKeepNoLocksWaiting(t *testing.T) {
	t.Parallel()
	lines, urls := newNarrowsTo(t, redistest.Start(t, 3), redlock.MaxResult/2)
	l := newLocker(t, urls)
	lock := mustLock(t, l, "long")
	stored := make(chan error, 1)
	result := bytes.Repeat([]byte("x"), redlock.MaxResult)
	go func() { stored <- lock.UnlockWith(result, time.Hour) }()
	began, n := time.Now(), 0
	for range 20 {
		eventually(t, bound, "a quorum confirms another result in time", func() bool {
			n++
			return unlockWith(t, mustLock(t, l, strconv.Itoa(n), redlock.WithRecall()), []byte("short"), time.Hour)
		})
	}
	err := answered(t, func() error { _, err := l.TryLock(t.Context(), "long", redlock.WithRecall()); return err })
	tooLate := time.Since(began) > 5*time.Second // the lock is held for 10 s more at most
	if !errors.Is(err, redlock.ErrHeld) && !tooLate {
		t.Errorf("the key of the result: %v", err)
	}
	for _, line := range lines {
		close(line.open)
	}
	if err := <-stored; errors.Is(err, redlock.ErrNotRemembered) && tooLate {
		t.Skip("this machine is too busy to store the result in time")
	} else if err != nil && !errors.Is(err, redlock.ErrNoQuorum) {
		t.Fatal(err)
	}
	if done := recalled(t, l, "long"); !bytes.Equal(done.Result, result) {
		t.Errorf("%d bytes", len(done.Result))
	}
}

// TestUnreadableResult: what is done and can't be read is neither a missing quorum nor free. A short result needs no second connection.
func TestUnreadableResult(t *testing.T) {
	t.Parallel()
	servers := redistest.Start(t, 3)
	lines, urls := newNarrowsTo(t, servers, 1<<30)
	former := newLocker(t, redistest.URLs(servers))
	fence := leaveResult(t, former, "k", strings.Repeat("x", protocol.ShortResult+1))
	short := strings.Repeat("x", protocol.ShortResult)
	leaveResult(t, former, "short", short)
	leaveResult(t, former, "empty", "")
	l := newLocker(t, urls)
	lockUnlock(t, l, "other") // it is connected
	eventually(t, bound, "all are connected", func() bool { return l.Status().Available == 3 })
	for _, line := range lines {
		line.closed.Store(true)
	}
	for _, opts := range [][]redlock.LockOption{{redlock.WithWait(0)}, {redlock.WithWait(50 * time.Millisecond)}} {
		var lock *redlock.Lock
		err := answered(t, func() (err error) {
			lock, err = l.Lock(t.Context(), "k", append(opts, redlock.WithRecall())...)
			return err
		})
		if !errors.Is(err, redlock.ErrUnreadable) || errors.Is(err, redlock.ErrNoQuorum) || errors.Is(err, redlock.ErrHeld) || !strings.Contains(err.Error(), "127.0.0.1:") {
			t.Errorf("%v, %v, want ErrUnreadable with the masters", lock, err)
		}
	}
	for key, want := range map[string]string{"short": short, "empty": ""} {
		var done *redlock.DoneError
		err := answered(t, func() error { _, err := l.TryLock(t.Context(), key, redlock.WithRecall()); return err })
		if !errors.As(err, &done) || string(done.Result) != want {
			t.Errorf("%s: %v, want the result", key, err)
		}
	}
	for _, line := range lines {
		line.closed.Store(false)
	}
	eventually(t, bound, "it can be read", func() bool {
		_, err := l.TryLock(t.Context(), "k", redlock.WithRecall())
		var done *redlock.DoneError
		return errors.As(err, &done) && done.Fence == fence
	})
}

// TestResultsAreHandedOn: a call that meets a result hands it to the masters which lack it, although a quorum remembers it.
func TestResultsAreHandedOn(t *testing.T) {
	t.Parallel()
	l, servers := onServers(t, 3)
	lockUnlock(t, l, "first")
	for _, size := range []int{10, 100_000} {
		for i, s := range servers {
			key := fmt.Sprint(size, " ", i)
			leaveResult(t, l, key, strings.Repeat("x", size))
			s.Client().Del(t.Context(), redisKey(key)+":result")
			eventually(t, bound, "all masters have it again", func() bool {
				recalled(t, l, key)
				return remembering(t, servers[i:i+1], key) != nil
			})
		}
	}
}

// TestLongResultComesAfterTheRelease: a master on which the key is free already remembers the result, too.
func TestLongResultComesAfterTheRelease(t *testing.T) {
	t.Parallel()
	l, servers := onServers(t, 3)
	for i, s := range servers {
		var key string
		try := 0
		eventually(t, bound, "a quorum confirms the result in time", func() bool {
			try++
			key = fmt.Sprint(i, " ", try)
			lock := mustLock(t, l, key)
			eventually(t, bound, "it has the key", func() bool { return s.Client().Del(t.Context(), redisKey(key)).Val() == 1 })
			return unlockWith(t, lock, make([]byte, 100_000), time.Hour)
		})
		eventually(t, bound, "it has the result", func() bool { return remembering(t, servers[i:i+1], key) != nil })
	}
}

// TestResultOfOneMasterIsMet: one master that answers in time is enough, whichever it is.
func TestResultOfOneMasterIsMet(t *testing.T) {
	t.Parallel()
	l, servers := onServers(t, 3, redlock.WithTimeout(longTTL/3))
	lockUnlock(t, l, "first")
	for i := range 60 {
		key := strconv.Itoa(i)
		leaveResult(t, l, key, "paid")
		for j, s := range servers {
			if j != i%3 {
				s.Client().Del(context.Background(), redisKey(key)+":result")
			}
		}
		recalled(t, l, key)
	}
}

// TestCloseWhileAResultIsStored: it isn't stored, and neither Close nor who stores it hangs.
func TestCloseWhileAResultIsStored(t *testing.T) {
	t.Parallel()
	lines, urls := newNarrowsTo(t, redistest.Start(t, 3), redlock.MaxResult/2)
	l := newLocker(t, urls)
	lock := mustLock(t, l, "k")
	stored := make(chan error, 1)
	go func() { stored <- lock.UnlockWith(make([]byte, redlock.MaxResult), time.Hour) }()
	for _, line := range lines {
		eventually(t, bound, "the result is on its way", func() bool { return line.full.Load() > 0 })
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if err := <-stored; err == nil {
		t.Error("a result that no master has counts as stored")
	}
	for _, line := range lines {
		close(line.open)
	}
}
