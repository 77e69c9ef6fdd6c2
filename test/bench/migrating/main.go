// Migrating does its work with redsync, with both locks, or with this one, by the STEP of docs/migrating.md.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/go-redsync/redsync/v4"
	rsredis "github.com/go-redsync/redsync/v4/redis"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"

	"github.com/caddy-redlock/caddy-redlock/redlock"
)

var masters = []string{"redis://10.0.0.1:6379", "redis://10.0.0.2:6379", "redis://10.0.0.3:6379"}

func main() {
	var pools []rsredis.Pool
	for _, url := range masters {
		options, err := redis.ParseURL(url)
		if err != nil {
			log.Fatal(err)
		}
		pools = append(pools, goredis.NewPool(redis.NewClient(options)))
	}
	locker, err := redlock.Open(masters)
	if err != nil {
		log.Fatal(err)
	}
	old := redsync.New(pools...).NewMutex("invoices", redsync.WithExpiry(time.Minute), redsync.WithTries(1000))
	err = do(os.Getenv("STEP"), old, locker)
	if err := errors.Join(err, locker.Close()); err != nil {
		log.Fatal(err)
	}
}

// do sends the invoices with the locks of a step of the change.
func do(step string, old *redsync.Mutex, locker *redlock.Locker) (err error) {
	ctx := context.Background()
	if step != "3" {
		if err := old.LockContext(ctx); err != nil {
			return err
		}
		defer func() {
			_, unlocked := old.Unlock()
			err = errors.Join(err, unlocked)
		}()
	}
	if step == "1" {
		return sendInvoices(ctx)
	}
	return locker.Do(ctx, "invoices", func(ctx context.Context, _ *redlock.Lock) error { return sendInvoices(ctx) }, redlock.WithWait(30*time.Second))
}

func sendInvoices(ctx context.Context) error {
	fmt.Println("sending invoices")
	return ctx.Err()
}
