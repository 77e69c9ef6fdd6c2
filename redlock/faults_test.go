package redlock_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock"
	"github.com/caddy-redlock/caddy-redlock/redlock/simnet"
)

// onEach waits until all servers, not only those that were a quorum first, hold so many keys.
func onEach(t *testing.T, net *simnet.Net, keys int) {
	t.Helper()
	for _, s := range net.Servers {
		eventually(t, bound, fmt.Sprintf("%d keys on %s", keys, s), func() bool { return len(s.Keys()) == keys })
	}
}

func TestMinorityKilled(t *testing.T) {
	simnet.Run(t, 3, func(t *testing.T, net *simnet.Net) {
		l := simLocker(t, net.Masters())
		held := mustLock(t, l, "held")
		onEach(t, net, 1)
		net.Servers[0].Kill()
		mustUnlock(t, held)
		lockUnlock(t, l, "key")
		net.RequireNoKeys(t)
	})
}

// TestMinorityHung: nobody waits for a master that hangs.
func TestMinorityHung(t *testing.T) {
	simnet.Run(t, 3, func(t *testing.T, net *simnet.Net) {
		l := simLocker(t, net.Masters())
		lockUnlock(t, l, "warm up")
		held := mustLock(t, l, "held")
		expired := mustLock(t, l, "expired")
		onEach(t, net, 2)
		net.Servers[0].Hang()
		start := time.Now()
		mustUnlock(t, held)
		lock := mustLock(t, l, "key")
		if _, err := l.TryLock(t.Context(), "key"); !errors.Is(err, redlock.ErrHeld) {
			t.Errorf("TryLock on a held key: %v, want ErrHeld", err)
		}
		mustUnlock(t, lock)
		for _, s := range net.Servers[1:] {
			s.Delete("expired", 0)
		}
		if err := expired.Unlock(); !errors.Is(err, redlock.ErrExpired) {
			t.Errorf("Unlock of a key that a quorum has lost: %v, want ErrExpired", err)
		}
		if took := time.Since(start); took > 2*time.Millisecond {
			t.Errorf("took %v: somebody has waited for the hung master", took)
		}
		net.Servers[0].Resume()
		net.RequireNoKeys(t)
	})
}

// TestMajorityDown also checks that the masters come back into use.
func TestMajorityDown(t *testing.T) {
	for _, fault := range []struct {
		name     string
		down, up func(*simnet.Server)
		held     bool // a release is owed: its repetition also finds out that a master is back
	}{
		{"hung", (*simnet.Server).Hang, (*simnet.Server).Resume, true},
		{"hung while idle", (*simnet.Server).Hang, (*simnet.Server).Resume, false},
		{"killed", (*simnet.Server).Kill, (*simnet.Server).Restart, true},
		{"killed while idle", (*simnet.Server).Kill, (*simnet.Server).Restart, false},
	} {
		t.Run(fault.name, func(t *testing.T) {
			simnet.Run(t, 3, func(t *testing.T, net *simnet.Net) {
				l := simLocker(t, net.Masters())
				lockUnlock(t, l, "warm up")
				var held *redlock.Lock
				if fault.held {
					held = mustLock(t, l, "held")
				}
				for _, s := range net.Servers[:2] {
					fault.down(s)
				}
				for range 3 { // the first finds it out, the others know
					requireNoQuorum(t, l, "sim://0", "sim://1")
				}
				if fault.held {
					if err := held.Unlock(); !errors.Is(err, redlock.ErrNoQuorum) {
						t.Errorf("Unlock: %v, want ErrNoQuorum", err)
					}
				}
				for _, s := range net.Servers[:2] {
					fault.up(s)
				}
				eventually(t, bound, "TryLock works again", func() bool {
					lock, err := l.TryLock(t.Context(), "key")
					if err == nil {
						mustUnlock(t, lock)
					}
					return err == nil
				})
				net.RequireNoKeys(t)
			})
		})
	}
}

// requireNoQuorum tries to lock, and requires that the error names the masters that are down.
func requireNoQuorum(t *testing.T, l *redlock.Locker, down ...string) {
	t.Helper()
	_, err := l.TryLock(t.Context(), "key")
	var quorum *redlock.QuorumError
	if !errors.As(err, &quorum) || !errors.Is(err, redlock.ErrNoQuorum) || errors.Is(err, redlock.ErrHeld) {
		t.Fatalf("TryLock with %d masters down: %v, want a QuorumError", len(down), err)
	}
	var failed []string
	for _, m := range quorum.Masters {
		failed = append(failed, m.Master)
	}
	slices.Sort(failed)
	if !slices.Equal(failed, down) || quorum.Answered >= quorum.Quorum {
		t.Errorf("%d of %d answered, failed are %v; want %v", quorum.Answered, quorum.Quorum, quorum.Masters, down)
	}
	for _, name := range down {
		if !strings.Contains(err.Error(), name) {
			t.Errorf("error %q doesn't name %s", err, name)
		}
	}
}

// TestQuorumErrorTellsTheMasters: a master that hangs, and need not be waited for, isn't counted as failed.
func TestQuorumErrorTellsTheMasters(t *testing.T) {
	simnet.Run(t, 3, func(t *testing.T, net *simnet.Net) {
		l := simLocker(t, net.Masters())
		lockUnlock(t, l, "key")
		for _, s := range net.Servers[:2] {
			s.Kill()
		}
		eventually(t, bound, "both are seen to be down", func() bool {
			_, err := l.TryLock(t.Context(), "key")
			var quorum *redlock.QuorumError
			return errors.As(err, &quorum) && len(quorum.Masters) == 2
		})
		net.Servers[2].Hang()
		_, err := l.TryLock(t.Context(), "key")
		if want := "no quorum: 1 of 3 masters usable, 2 needed: "; !strings.Contains(fmt.Sprint(err), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	})
}

func TestMissedReleaseIsDelivered(t *testing.T) {
	simnet.Run(t, 3, func(t *testing.T, net *simnet.Net) {
		l := simLocker(t, net.Masters(), redlock.WithTTL(5*time.Second)) // longer than it takes
		lock := mustLock(t, l, "key")
		onEach(t, net, 1)
		net.Servers[0].Hang()
		mustUnlock(t, lock)
		late := mustLock(t, l, "late") // its acquire and its release reach the master only when it wakes up
		mustUnlock(t, late)
		time.Sleep(time.Second) // beyond the timeout
		net.Servers[0].Resume()
		eventually(t, time.Second, "all keys are free", func() bool { return len(net.Servers[0].Keys()) == 0 })
		net.RequireNoKeys(t)
	})
}

// TestMissedReleaseIsRepeated breaks the connection on which a master would have read the release.
func TestMissedReleaseIsRepeated(t *testing.T) {
	simnet.Run(t, 3, func(t *testing.T, net *simnet.Net) {
		l := simLocker(t, net.Masters())
		lock := mustLock(t, l, "key")
		onEach(t, net, 1)
		net.Addresses[0].Set(simnet.Weather{Away: true})
		net.Addresses[0].Cut()
		mustUnlock(t, lock)
		if len(net.Servers[0].Keys()) != 1 {
			t.Fatal("the master has got the release, though it takes no connection")
		}
		net.Addresses[0].Set(simnet.Weather{})
		eventually(t, simTTL/2, "the key is free before it expires", func() bool { return len(net.Servers[0].Keys()) == 0 })
		net.RequireNoKeys(t)
	})
}

func TestConnectionKilled(t *testing.T) {
	simnet.Run(t, 3, func(t *testing.T, net *simnet.Net) {
		l := simLocker(t, net.Masters())
		cut := func(pause time.Duration) {
			for _, a := range net.Addresses {
				a.Cut()
			}
			time.Sleep(pause)
		}
		for i := range 10 {
			pause := time.Duration(i) * 50 * time.Microsecond // it is not seen yet, the next connection is being made, there is one
			lock := mustLock(t, l, "key")
			cut(pause)
			_ = lock.Unlock() // what was sent just before a kill is seen isn't confirmed, but repeated
			cut(pause)
			lockUnlock(t, l, "key")
		}
		net.RequireNoKeys(t)
	})
}

// TestCanceledAnywhere cancels attempts at all their points: none may leave a key.
func TestCanceledAnywhere(t *testing.T) {
	for _, hung := range []bool{false, true} {
		t.Run(fmt.Sprint("one hung: ", hung), func(t *testing.T) {
			simnet.Run(t, 3, func(t *testing.T, net *simnet.Net) {
				for i, a := range net.Addresses {
					a.Set(simnet.Weather{Delay: time.Duration(i) * 100 * time.Microsecond}) // which they answer one after the other
				}
				l := simLocker(t, net.Masters())
				lockUnlock(t, l, "warm up")
				if hung {
					net.Servers[0].Hang()
				}
				var won, canceled int
				for at := time.Microsecond; at < time.Millisecond; at += 5 * time.Microsecond {
					ctx, cancel := context.WithCancel(t.Context())
					timer := time.AfterFunc(at, cancel)
					lock, err := l.TryLock(ctx, "key")
					switch {
					case err == nil:
						won++
						mustUnlock(t, lock)
					case errors.Is(err, context.Canceled):
						canceled++
					default:
						// the hung master may make a quorum of both others necessary, never impossible
						t.Errorf("TryLock: %v, want a lock or context.Canceled", err)
					}
					timer.Stop()
					cancel()
				}
				if won < 20 || canceled < 20 {
					t.Errorf("won %d, canceled %d: the cancellations don't cover the attempt", won, canceled)
				}
				net.Servers[0].Resume()
				eventually(t, simTTL/2, "all keys are free before they expire", func() bool {
					return !slices.ContainsFunc(net.Servers, func(s *simnet.Server) bool { return len(s.Keys()) > 0 })
				})
			})
		})
	}
}
