package redlock_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock"
)

// mustOpen returns a Locker on a master in memory, so that the examples run without a server.
func mustOpen() *redlock.Locker {
	locker, err := redlock.Open([]string{"memory://"})
	if err != nil {
		log.Fatal(err)
	}
	return locker
}

// In production the URLs are those of three or five independent servers, such as redis://10.0.0.1:6379.
func Example() {
	locker, err := redlock.Open([]string{"memory://"}, redlock.WithTTL(5*time.Second))
	if err != nil {
		log.Fatal(err)
	}
	err = locker.Do(context.Background(), "invoices", func(context.Context, *redlock.Lock) error {
		fmt.Println("sending invoices")
		return nil
	})
	fmt.Println("errors:", err, locker.Close())
	// Output:
	// sending invoices
	// errors: <nil> <nil>
}

func ExampleWithTLS() {
	own, err := tls.LoadX509KeyPair("/etc/redlock/client.crt", "/etc/redlock/client.key")
	if err != nil {
		log.Fatal(err)
	}
	locker, err := redlock.Open([]string{"rediss://10.0.0.1", "rediss://10.0.0.2", "rediss://10.0.0.3"},
		redlock.WithTLS(&tls.Config{Certificates: []tls.Certificate{own}}))
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = locker.Close() }()
}

// At most three exports run at once, over all processes.
func ExampleWithConcurrency() {
	locker := mustOpen()
	defer func() { _ = locker.Close() }()

	lock, err := locker.Lock(context.Background(), "exports", redlock.WithConcurrency(3))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("slot is 0 to 2:", 0 <= lock.Slot() && lock.Slot() <= 2, lock.Unlock())
	// Output: slot is 0 to 2: true <nil>
}

func ExampleLocker_Lock() {
	locker := mustOpen()
	defer func() { _ = locker.Close() }()

	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second) // the longest wait
	defer cancel()
	lock, err := locker.Lock(ctx, "order:42")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("held:", lock.Err() == nil)
	fmt.Println("unlock:", lock.Unlock())
	// Output:
	// held: true
	// unlock: <nil>
}

func ExampleLocker_TryLock() {
	locker := mustOpen()
	defer func() { _ = locker.Close() }()

	first, err := locker.TryLock(context.Background(), "order:42", redlock.WithTTL(5*time.Second))
	if err != nil {
		log.Fatal(err)
	}
	_, err = locker.TryLock(context.Background(), "order:42")
	var held *redlock.HeldError
	if errors.As(err, &held) {
		fmt.Println(err)
		fmt.Println("retry after at most", held.RetryAfter.Round(time.Second))
	}
	fmt.Println("unlock:", first.Unlock())
	// Output:
	// redlock: lock is held
	// retry after at most 5s
	// unlock: <nil>
}

func ExampleLocker_Do() {
	locker := mustOpen()
	defer func() { _ = locker.Close() }()

	err := locker.Do(context.Background(), "order:42", func(ctx context.Context, lock *redlock.Lock) error {
		fmt.Println("working; the lock is lost:", ctx.Err() != nil)
		fmt.Println("it has a fencing token:", lock.Fence() > 0)
		return nil
	})
	fmt.Println("error:", err)
	// Output:
	// working; the lock is lost: false
	// it has a fencing token: true
	// error: <nil>
}

// A job that another machine is running is skipped.
func ExampleLocker_TryDo() {
	locker := mustOpen()
	defer func() { _ = locker.Close() }()

	job := func() error {
		return locker.TryDo(context.Background(), "job:invoices", func(context.Context, *redlock.Lock) error {
			fmt.Println("sending invoices")
			return nil
		})
	}
	fmt.Println("error:", job())

	elsewhere, err := locker.TryLock(context.Background(), "job:invoices") // stands for another machine
	if err != nil {
		log.Fatal(err)
	}
	if err := job(); errors.Is(err, redlock.ErrHeld) {
		fmt.Println("already running:", err)
	}
	fmt.Println("unlock:", elsewhere.Unlock())
	// Output:
	// sending invoices
	// error: <nil>
	// already running: redlock: lock is held
	// unlock: <nil>
}

// Money is moved while both accounts are locked. A second transfer may name them in the other order.
func ExampleLocker_LockAll() {
	locker := mustOpen()
	defer func() { _ = locker.Close() }()

	lock, err := locker.LockAll(context.Background(), []string{"account:1", "account:2"})
	if err != nil {
		log.Fatal(err)
	}
	_, err = locker.TryLock(context.Background(), "account:2")
	fmt.Println(err)
	fmt.Println("unlock:", lock.Unlock())
	// Output:
	// redlock: lock is held
	// unlock: <nil>
}

// The call waits for the lock for a moment, and then works for as long as it needs.
func ExampleWithWait() {
	locker := mustOpen()
	defer func() { _ = locker.Close() }()

	err := locker.Do(context.Background(), "order:42", func(context.Context, *redlock.Lock) error {
		second := locker.Do(context.Background(), "order:42", func(context.Context, *redlock.Lock) error { // as another request does
			return errors.New("not reached")
		}, redlock.WithWait(10*time.Millisecond))
		fmt.Println(second)
		fmt.Println("held by another, wait is over:", errors.Is(second, redlock.ErrHeld), errors.Is(second, context.DeadlineExceeded))
		return nil
	}, redlock.WithWait(2*time.Second))
	fmt.Println("error:", err)
	// Output:
	// redlock: lock is held (context deadline exceeded)
	// held by another, wait is over: true true
	// error: <nil>
}

// store is a table whose rows remember the largest fencing token with which they were written.
type store map[string]struct {
	state string
	fence uint64
}

// write does what UPDATE ... WHERE id = $id AND fence <= $fence does in SQL.
func (s store) write(id, state string, fence uint64) error {
	row := s[id]
	if fence < row.fence {
		return errors.New("a later holder has written already")
	}
	row.state, row.fence = state, fence
	s[id] = row
	return nil
}

// A holder that was paused for longer than its lease writes too late, and the store refuses that.
func ExampleLock_Fence() {
	locker := mustOpen()
	defer func() { _ = locker.Close() }()
	orders := make(store)

	paused, err := locker.Lock(context.Background(), "order:42", redlock.WithMaxHold(time.Millisecond))
	if err != nil {
		log.Fatal(err)
	}
	<-paused.Context().Done() // the lock is lost, and the process does not notice

	err = locker.Do(context.Background(), "order:42", func(_ context.Context, lock *redlock.Lock) error {
		return orders.write("42", "refunded", lock.Fence())
	})
	fmt.Println("the next holder:", err)
	fmt.Println("the paused one:", orders.write("42", "paid", paused.Fence()))
	fmt.Println(orders["42"].state)
	// Output:
	// the next holder: <nil>
	// the paused one: a later holder has written already
	// refunded
}

func ExampleLocker_Once() {
	locker := mustOpen()
	defer func() { _ = locker.Close() }()

	pay := func() {
		receipt, err := locker.Once(context.Background(), "payment:42", 24*time.Hour, func(context.Context, *redlock.Lock) ([]byte, error) {
			fmt.Println("paying")
			return []byte("receipt 1"), nil
		})
		switch {
		case errors.Is(err, redlock.ErrNotRemembered):
			log.Printf("paid, and a repeat may pay again: %v", err)
		case err != nil:
			log.Fatal(err)
		}
		fmt.Println(string(receipt))
	}
	pay()
	pay()
	// Output:
	// paying
	// receipt 1
	// receipt 1
}

func ExampleLocker_OncePer() {
	locker := mustOpen()
	defer func() { _ = locker.Close() }()

	for range 2 { // on each machine, each hour
		ran, err := locker.OncePer(context.Background(), "report", time.Hour, func(context.Context, *redlock.Lock) error {
			fmt.Println("sending the report")
			return nil
		})
		fmt.Println(ran, err)
	}
	// Output:
	// sending the report
	// true <nil>
	// false <nil>
}
