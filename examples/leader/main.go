// Command leader runs on several machines and works on one of them, the leader, while the others wait in line. When the leader
// exits, the next one is woken at once; when it dies, the next one leads after the TTL (10 s) at the latest.
//
//	REDIS_URLS="redis://10.0.0.1:6379 redis://10.0.0.2:6379 redis://10.0.0.3:6379" STORE_URL=redis://10.0.0.9:6379 go run ./examples/leader
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/caddy-redlock/caddy-redlock/redlock"
)

// key is what the leader holds the lock on.
const key = "leader:reports"

// campaign waits for the lead and works while this process has it, until the work ends or ctx does.
func campaign(ctx context.Context, locker *redlock.Locker, work func(context.Context, *redlock.Lock) error) error {
	for {
		err := locker.Do(ctx, key, work) // the context of the work ends with ctx, and when the lead is lost
		if ctx.Err() != nil || !errors.Is(err, redlock.ErrLost) {
			return err
		}
		log.Print("lost the lead: ", err) // back to the end of the line
	}
}

// addReport adds a report, and refuses it if a later leader has added one: its fencing token is larger.
var addReport = redis.NewScript(`
	if tonumber(ARGV[1]) < tonumber(redis.call('GET', KEYS[1]) or 0) then
		return redis.error_reply('FENCED a later leader has written')
	end
	redis.call('SET', KEYS[1], ARGV[1])
	return redis.call('RPUSH', KEYS[2], ARGV[2])`)

// writer is the work of the leader: it writes a report every second into a store.
type writer struct {
	store *redis.Client
	name  string
	pause time.Duration
}

func (w *writer) work(ctx context.Context, lock *redlock.Lock) error {
	log.Printf("leads with fencing token %d", lock.Fence())
	for {
		report := fmt.Sprintf("%d %s", lock.Fence(), w.name)
		err := addReport.Run(ctx, w.store, []string{"{reports}:fence", "{reports}"}, lock.Fence(), report).Err()
		if redis.HasErrorPrefix(err, "FENCED") {
			return fmt.Errorf("%w: %w", redlock.ErrLost, err) // this process was paused, and has not noticed yet
		}
		if err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(w.pause):
		}
	}
}

// run takes part in the election until ctx ends, and then gives up the lead, or the place in line.
func run(ctx context.Context, masters []string, store string, pause time.Duration, opts ...redlock.Option) error {
	options, err := redis.ParseURL(store)
	if err != nil {
		return err
	}
	client := redis.NewClient(options)
	defer func() { _ = client.Close() }()
	locker, err := redlock.Open(masters, append(opts, redlock.WithObserver(redlock.Observer{Acquired: func(waited time.Duration, via string) {
		log.Printf("has the lead after %v: %s", waited, via) // free, woken, or polled: the leader before has died
	}}))...)
	if err != nil {
		return err
	}
	host, _ := os.Hostname() // a name without the host still has the process
	w := &writer{store: client, name: fmt.Sprintf("%s/%d", host, os.Getpid()), pause: pause}
	err = campaign(ctx, locker, w.work)
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		err = nil
	}
	return errors.Join(err, locker.Close())
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	masters := strings.Fields(cmp.Or(os.Getenv("REDIS_URLS"), "redis://127.0.0.1:6379"))
	if err := run(ctx, masters, cmp.Or(os.Getenv("STORE_URL"), "redis://127.0.0.1:6379"), time.Second); err != nil {
		log.Fatal(err)
	}
}
