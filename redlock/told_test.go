package redlock_test

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock"
	"github.com/caddy-redlock/caddy-redlock/redlock/inspect"
	"github.com/caddy-redlock/caddy-redlock/redlock/simnet"
)

// blocker is a log and an Observer that block, as a log does whose pipe nobody reads, until it is released.
type blocker struct {
	slog.Handler
	entered  chan struct{} // has room for one
	released chan struct{}
}

func newBlocker() *blocker {
	return &blocker{Handler: slog.DiscardHandler, entered: make(chan struct{}, 1), released: make(chan struct{})}
}

func (b *blocker) block() {
	select {
	case b.entered <- struct{}{}:
	default:
	}
	<-b.released
}

func (b *blocker) Enabled(context.Context, slog.Level) bool { return true }

func (b *blocker) Handle(context.Context, slog.Record) error {
	b.block()
	return nil
}

func (b *blocker) leaseLost(error) { b.block() }

// TestBlockedLogAndObserver: neither a log nor an Observer that blocks keeps leases from being renewed, locks from being taken and
// released, those that are lost from ending, or Close from returning.
func TestBlockedLogAndObserver(t *testing.T) {
	for name, option := range map[string]func(*blocker) redlock.Option{
		"log":      func(b *blocker) redlock.Option { return redlock.WithLogger(slog.New(b)) },
		"observer": func(b *blocker) redlock.Option { return redlock.WithObserver(redlock.Observer{LeaseLost: b.leaseLost}) },
	} {
		t.Run(name, func(t *testing.T) {
			simnet.Run(t, 3, func(t *testing.T, net *simnet.Net) {
				b := newBlocker()
				defer close(b.released)
				l, err := redlock.New(net.Masters(), append(slices.Clone(simLife), redlock.WithRestartGuard(0), option(b))...)
				if err != nil {
					t.Fatal(err)
				}
				good := mustLock(t, l, "good")
				for range 2 {
					stuck := mustLock(t, l, "stuck", redlock.WithMaxHold(time.Millisecond))
					if err := ended(t, stuck.Context()); err != redlock.ErrMaxHold {
						t.Errorf("the stuck lock ended by %v", err)
					}
					stays(t, 2*simTTL, "held", func() bool { return good.Err() == nil })
				}
				<-b.entered
				mustUnlock(t, good)
				if err := l.Close(); err != nil {
					t.Errorf("close: %v", err)
				}
				net.RequireNoKeys(t)
			})
		})
	}
}

// TestEndsBeforeTheNext: when the next holder has a key, all contexts of a lock that was lost have ended.
func TestEndsBeforeTheNext(t *testing.T) {
	const hold = 20 * time.Millisecond
	ways := map[string]func(l *redlock.Locker, lock *redlock.Lock){
		"max hold": nil,
		"close":    func(l *redlock.Locker, _ *redlock.Lock) { _ = l.Close() },
		"forced": func(l *redlock.Locker, lock *redlock.Lock) {
			_ = inspect.Force(context.Background(), l, "a", 0, lock.Fence())
		},
		"unlock": func(_ *redlock.Locker, lock *redlock.Lock) { _ = lock.Unlock() },
	}
	for way, end := range ways {
		for _, keys := range [][]string{{"a"}, {"a", "b"}} {
			t.Run(fmt.Sprint(way, len(keys)), func(t *testing.T) {
				simnet.Run(t, 3, func(t *testing.T, net *simnet.Net) {
					other := simLocker(t, net.Masters())
					for range 20 {
						l, err := redlock.New(net.Masters(), append(simLife, redlock.WithRestartGuard(0))...)
						if err != nil {
							t.Fatal(err)
						}
						opts := []redlock.LockOption{redlock.WithMaxHold(time.Hour)}
						if end == nil {
							opts = []redlock.LockOption{redlock.WithMaxHold(hold)}
						}
						lock, err := l.LockAll(t.Context(), keys, opts...)
						if err != nil {
							t.Fatal(err)
						}
						ctx, cancel := lock.WithContext(t.Context())
						child, cancelChild := context.WithCancel(ctx)
						var next sync.WaitGroup
						for _, from := range []*redlock.Locker{l, other} {
							for _, key := range keys {
								next.Go(func() {
									second, err := from.Lock(t.Context(), key)
									if err != nil { // the first Locker is closed
										return
									}
									if lock.Context().Err() == nil || ctx.Err() == nil || child.Err() == nil {
										t.Errorf("the next holder of %q has it while the contexts of the first have %v, %v, %v", key, lock.Context().Err(), ctx.Err(), child.Err())
									}
									_ = second.Unlock()
								})
							}
						}
						time.Sleep(hold / 2) // they wait
						if end != nil {
							end(l, lock)
						}
						next.Wait()
						cancelChild()
						cancel()
						_ = lock.Unlock()
						_ = l.Close()
					}
				})
			})
		}
	}
}
