package redlock_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/internal/redistest"
	"github.com/caddy-redlock/caddy-redlock/redlock"
)

// TestExclusionsEnd: a master that is excluded says what to do. That is done, and the master is back.
func TestExclusionsEnd(t *testing.T) {
	t.Parallel()
	const guard = 3 * time.Second
	guarded := []redlock.Option{redlock.WithTTL(2 * time.Second), redlock.WithMaxTTL(2 * time.Second), redlock.WithRestartGuard(guard)}
	withoutInfo := func(t *testing.T, s *redistest.Server) []string {
		return asUser(t, []*redistest.Server{s}, slices.DeleteFunc(redistest.LeastRights(t), func(right string) bool { return right == "+info" }))
	}
	asReplica := func(t *testing.T, s *redistest.Server) []string {
		host, port, _ := strings.Cut(redistest.Start(t, 1)[0].Addr(), ":")
		command(t, s, "REPLICAOF", host, port)
		return []string{s.URL()}
	}
	for name, test := range map[string]struct {
		provoke func(*testing.T, *redistest.Server) (urls []string)
		opts    []redlock.Option
		does    string // the words that are followed
		follow  func(t *testing.T, s *redistest.Server, l *redlock.Locker) *redlock.Locker
	}{
		"replica": {asReplica, nil, "name its master", func(t *testing.T, s *redistest.Server, _ *redlock.Locker) *redlock.Locker {
			of := s.Client().InfoMap(t.Context(), "replication").Val()["Replication"]
			return newLocker(t, []string{"redis://" + of["master_host"] + ":" + of["master_port"]})
		}},
		"replica, one of others": {asReplica, nil, "an independent server instead", func(t *testing.T, _ *redistest.Server, _ *redlock.Locker) *redlock.Locker {
			return newLocker(t, redistest.URLs(redistest.Start(t, 1)))
		}},
		"no INFO": {withoutInfo, guarded, "grant this user INFO", func(t *testing.T, s *redistest.Server, l *redlock.Locker) *redlock.Locker {
			command(t, s, "ACL", "SETUSER", "locks", "+info")
			return l
		}},
		"no INFO, no guard": {withoutInfo, guarded, "turn the restart guard off", func(t *testing.T, s *redistest.Server, _ *redlock.Locker) *redlock.Locker {
			return newLocker(t, withoutInfo(t, s))
		}},
		"named twice": {func(_ *testing.T, s *redistest.Server) []string {
			return []string{strings.Replace(s.URL(), "127.0.0.1", "localhost", 1), s.URL()}
		}, nil, "list each server once", func(t *testing.T, s *redistest.Server, _ *redlock.Locker) *redlock.Locker {
			return newLocker(t, []string{s.URL()})
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := redistest.Start(t, 1)[0]
			l := newLocker(t, test.provoke(t, s), test.opts...)
			eventually(t, bound, "a master is excluded and says: "+test.does, func() bool {
				return slices.ContainsFunc(l.Status().Masters, func(m redlock.MasterStatus) bool {
					return m.State == redlock.MasterExcluded && strings.Contains(fmt.Sprint(m.Err), test.does)
				})
			})
			requireState(t, test.follow(t, s, l), 0, redlock.MasterAvailable)
		})
	}
}
