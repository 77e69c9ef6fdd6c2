// Command job is for cron on several machines: the job runs on one of them.
//
//	REDIS_URLS="redis://10.0.0.1:6379 redis://10.0.0.2:6379 redis://10.0.0.3:6379" go run ./examples/job
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"strings"

	"github.com/caddy-redlock/caddy-redlock/redlock"
)

func run(ctx context.Context, locker *redlock.Locker, job func(context.Context) error) (err error) {
	lock, err := locker.TryLock(ctx, "job:invoices")
	if errors.Is(err, redlock.ErrHeld) {
		return nil // another machine is at it
	}
	if err != nil {
		return err // redlock.ErrNoQuorum: too few masters answer
	}
	// The error of Unlock tells that the lease was over before the job was.
	defer func() { err = errors.Join(err, lock.Unlock()) }()
	return job(lock.Context()) // ends, with cause redlock.ErrLost, when the lease does
}

func main() {
	masters, err := redlock.Dial(strings.Fields(cmp.Or(os.Getenv("REDIS_URLS"), "memory://"))...)
	if err != nil {
		log.Fatal(err)
	}
	locker, err := redlock.New(masters)
	if err != nil {
		log.Fatal(err)
	}
	err = run(context.Background(), locker, func(context.Context) error {
		_, err := fmt.Println("sending invoices")
		return err
	})
	if err := errors.Join(err, locker.Close()); err != nil {
		log.Fatal(err)
	}
}
