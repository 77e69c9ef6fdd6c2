package redlock_test

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/internal/tests/redistest"
	"github.com/caddy-redlock/caddy-redlock/redlock"
)

// TestRefusalEndsWhileIdle: a master that has refused locks is found to be well again without any, whatever was wrong with it. Each
// change is logged once.
func TestRefusalEndsWhileIdle(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name        string
		wrong, well []any
		key         string // only a call for this one shows it
	}{
		{"memory", []any{"CONFIG", "SET", "maxmemory", "1"}, []any{"CONFIG", "SET", "maxmemory", "0"}, ""},
		{"a right that only a lock needs", []any{"ACL", "SETUSER", "default", "-rpush"}, []any{"ACL", "SETUSER", "default", "+rpush"}, "free"},
		{"a right that only a waiter needs", []any{"ACL", "SETUSER", "default", "-lset"}, []any{"ACL", "SETUSER", "default", "+lset"}, "held"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			var log logBook
			l, servers := onServers(t, 1, log.option(), redlock.WithTimeout(longTTL/3))
			requireState(t, l, 0, redlock.MasterAvailable)
			held := mustLock(t, newLocker(t, redistest.URLs(servers)), "held")
			command(t, servers[0], test.wrong...)
			eventually(t, 3*bound, "the master refuses", func() bool {
				if test.key != "" {
					_, _ = l.Lock(t.Context(), test.key, redlock.WithWait(time.Second)) // which a busy machine may end before it is queued
				}
				return l.Status().Masters[0].State == redlock.MasterRefuses
			})
			requireState(t, l, 0, redlock.MasterRefuses)
			command(t, servers[0], test.well...)
			requireState(t, l, 0, redlock.MasterAvailable)
			log.expect(t, "master available again")
			if down, up := log.lines("master unavailable"), log.lines("master available again"); len(down) != 1 || len(up) != 1 {
				t.Errorf("%q, %q", down, up)
			}
			mustUnlock(t, held)
			lockUnlock(t, l, "key")
			redistest.RequireNoKeys(t, servers)
		})
	}
}

// TestRefusalOfNodesEndsWhileIdle: each node of a cluster is tried with a key of its own.
func TestRefusalOfNodesEndsWhileIdle(t *testing.T) {
	t.Parallel()
	nodes := redistest.StartCluster(t, 3, 0)
	l := onCluster(t, nodes)
	requireState(t, l, 0, redlock.MasterAvailable)
	for _, node := range nodes {
		command(t, node, "ACL", "SETUSER", "default", "-rpush")
	}
	for _, key := range []string{"a", "b", "c", "d", "e", "f", "g", "h"} {
		_ = tryLock(t, l, key)
	}
	requireState(t, l, 0, redlock.MasterRefuses)
	for _, node := range nodes {
		command(t, node, "ACL", "SETUSER", "default", "+rpush")
	}
	requireState(t, l, 0, redlock.MasterAvailable)
	redistest.RequireNoKeys(t, nodes)
}

// TestStartIsLogged: in one line, once it is known which masters are available.
func TestStartIsLogged(t *testing.T) {
	t.Parallel()
	servers := redistest.Start(t, 3)
	for up, want := range map[int][]string{3: {"level=INFO", "3 of 3"}, 2: {"level=WARN", "2 of 3", "needed=2", "(unreachable)"}, 1: {"level=ERROR", "1 of 3"}} {
		urls := redistest.URLs(servers)
		for i := up; i < 3; i++ {
			urls[i] = strings.TrimSuffix(urls[i], urls[i][strings.LastIndex(urls[i], ":"):]) + ":" + string(rune('1'+i)) // nobody listens there
		}
		eventually(t, bound, fmt.Sprint("a line with ", want), func() bool { // after 3 s it comes without masters that are slow
			var log logBook
			l := newLocker(t, urls, log.option())
			log.expect(t, "masters available")
			eventually(t, bound, "as many are up", func() bool { return l.Status().Available == up })
			if lines := log.lines("masters available"); len(lines) != 1 {
				t.Errorf("%q", lines)
			}
			return len(log.lines(append(want, "masters available")...)) == 1
		})
	}
	var log logBook
	mustClose(t, newLocker(t, []string{"memory://"}, log.option()))
	if lines := log.lines(""); len(lines) != 0 {
		t.Errorf("of a master in memory: %q", lines)
	}
}

// TestDefaultLogger: a program that sets no logger learns from slog's default one why it gets no lock, and who says so.
func TestDefaultLogger(t *testing.T) {
	var log logBook
	former := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(&log, nil)))
	defer slog.SetDefault(former)
	newLocker(t, []string{"redis://127.0.0.1:1"})
	log.expect(t, "level=ERROR", "0 of 1 masters available", "logger=redlock")
}
