package redlock_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock"
)

// newExampleLocker is on a master in memory, so that the examples run without a server. In
// production give Dial the URLs of three or five independent servers.
func newExampleLocker() *redlock.Locker {
	masters, err := redlock.Dial("memory://")
	if err != nil {
		log.Fatal(err)
	}
	locker, err := redlock.New(masters)
	if err != nil {
		log.Fatal(err)
	}
	return locker
}

func ExampleLocker_Lock() {
	locker := newExampleLocker()
	defer func() { _ = locker.Close() }()

	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second) // the longest wait
	defer cancel()
	lock, err := locker.Lock(ctx, "order:42")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("locked, lost:", lock.Err() != nil)
	fmt.Println("unlock:", lock.Unlock())
	// Output:
	// locked, lost: false
	// unlock: <nil>
}

func ExampleLocker_TryLock() {
	locker := newExampleLocker()
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
	locker := newExampleLocker()
	defer func() { _ = locker.Close() }()

	err := locker.Do(context.Background(), "order:42", func(ctx context.Context) error {
		fmt.Println("nobody else is in here; lock lost:", ctx.Err() != nil)
		return nil
	})
	fmt.Println("error:", err)
	// Output:
	// nobody else is in here; lock lost: false
	// error: <nil>
}
