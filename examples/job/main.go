// Command job is run by cron on several machines at once: the job runs on one of them, for as long as it takes.
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

// run runs the job, unless another machine is running it.
func run(ctx context.Context, locker *redlock.Locker, job func(context.Context) error) error {
	err := locker.TryDo(ctx, "job:invoices", func(ctx context.Context, _ *redlock.Lock) error {
		return job(ctx) // its context ends, with cause redlock.ErrLost, when the lock is lost
	})
	if errors.Is(err, redlock.ErrHeld) {
		return nil // another machine is running it
	}
	return err // of the job; redlock.ErrNoQuorum: too few masters answer; redlock.ErrLost: another machine may have started it too
}

func main() {
	locker, err := redlock.Open(strings.Fields(cmp.Or(os.Getenv("REDIS_URLS"), "memory://")))
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
