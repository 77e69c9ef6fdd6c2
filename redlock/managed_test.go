package redlock_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/internal/tests/redistest"
	"github.com/caddy-redlock/caddy-redlock/redlock"
)

// serviceRights are those of a user of Redis as a service: all but what providers keep to themselves, as ElastiCache and MemoryDB list it.
func serviceRights() []string {
	rights := []string{"~*", "&*", "+@all"}
	for command := range strings.FieldsSeq("acl bgrewriteaof bgsave config debug migrate module psync replicaof save shutdown slaveof sync") {
		rights = append(rights, "-"+command)
	}
	return rights
}

// TestManagedRedis: a single master is a service with a replica, which takes over behind the same name when the primary has died. It has not
// all that the primary had, so nobody gets a lock until those that it may have forgotten have ended.
func TestManagedRedis(t *testing.T) {
	t.Parallel()
	const movedTTL = 2 * time.Second
	servers := redistest.Start(t, 2, "--repl-diskless-sync-delay", "0")
	primary, replica := servers[0], servers[1]
	waitForUptime(t, servers, movedTTL+time.Second)
	users := asUser(t, servers, serviceRights())
	_, port, _ := strings.Cut(primary.Addr(), ":")
	command(t, replica, "REPLICAOF", "127.0.0.1", port)
	eventually(t, bound, "the replica follows", func() bool {
		return strings.Contains(replica.Client().Info(t.Context(), "replication").Val(), "master_link_status:up")
	})
	endpoint := redistest.NewForwarder(t, primary)
	url := strings.Replace(users[0], primary.Addr(), endpoint.Addr(), 1)
	var d diary
	opts := []redlock.Option{redlock.WithTTL(movedTTL), redlock.WithMaxTTL(movedTTL), redlock.WithTimeout(movedTTL / 4), redlock.WithRestartGuard(movedTTL + time.Second), d.option()}
	others := newLocker(t, []string{url}, opts...)
	lock := lockEverywhere(t, newLocker(t, []string{url}, opts...), servers[:1])
	lockUnlock(t, others, "another")

	command(t, replica, "REPLICAOF", "127.0.0.1", "1") // the last writes of the primary don't reach it
	lost := mustLock(t, others, "lost")
	primary.Kill()
	command(t, replica, "REPLICAOF", "NO", "ONE")
	endpoint.MoveTo(replica)
	requireExclusion(t, others, lock)
	if lock := tryLock(t, others, "lost"); lock != nil && lost.Err() == nil {
		t.Error("a lock that the replica had not heard of has a second holder")
	} else if lock != nil {
		unlocked(t, lock)
	}
	_ = lost.Unlock()
	eventually(t, bound, "somebody has noticed that another server answers", func() bool {
		return len(d.find("down", "", redlock.ErrReplaced))+len(d.find("down", "", redlock.ErrRestarted)) > 0
	})
}

// TestOnlyTheseCommands: servers that know no other commands than those in docs/masters.md, as services rename or drop the rest, will do.
func TestOnlyTheseCommands(t *testing.T) {
	t.Parallel()
	known := []string{"client"} // which redistest sends
	for _, right := range redistest.LeastRights(t) {
		known = append(known, strings.TrimPrefix(right, "+"))
	}
	commands, err := redistest.Start(t, 1)[0].Client().Command(t.Context()).Result()
	if err != nil {
		t.Fatal(err)
	}
	var without []string
	for name := range commands {
		if !slices.Contains(known, name) && !strings.Contains(name, ".") { // a module's
			without = append(without, "--rename-command", name, "")
		}
	}
	if len(without) < 300 {
		t.Fatalf("only %d commands are taken away", len(without)/3)
	}
	servers := redistest.Start(t, 3, without...)
	waitForUptime(t, servers, 2*turnTTL+time.Second)
	requireFullTurn(t, redistest.URLs(servers))
}
