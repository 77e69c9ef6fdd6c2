package redis

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/caddy-redlock/caddy-redlock/internal/redistest"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
)

// dial returns the master at a URL, closed with the test.
func dial(t *testing.T, url string) *Master {
	t.Helper()
	o, err := redis.ParseURL(url)
	if err != nil {
		t.Fatal(err)
	}
	m := New(*o)
	t.Cleanup(func() { _ = m.Close() })
	return m
}

// acquireOnce asks a master for a key, and gives it back.
func acquireOnce(m *Master) error {
	cmd := &protocol.Command{Op: protocol.OpAcquire, Key: "redlock:{key}", Token: "1.1000.token", TTL: time.Minute, Process: "redlock:wake:test", Ticket: protocol.TryTicket}
	m.Do([]*protocol.Command{cmd})
	m.Do([]*protocol.Command{{Op: protocol.OpRelease, Key: cmd.Key, Token: cmd.Token, Process: cmd.Process, Ticket: cmd.Ticket}})
	return cmd.Reply.Err
}

// cantSave makes a server fail to save what it has.
func cantSave(t *testing.T, s *redistest.Server) {
	dir := s.Client().ConfigGet(t.Context(), "dir").Val()["dir"]
	if err := os.Mkdir(filepath.Join(dir, "dump.rdb"), 0o700); err != nil {
		t.Fatal(err)
	}
	runs(t, s, "CONFIG|SET|save|3600 1", "SET|a|b", "BGSAVE")
	for deadline := time.Now().Add(10 * time.Second); !strings.Contains(s.Client().Info(t.Context(), "persistence").Val(), "rdb_last_bgsave_status:err"); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the server saves")
		}
	}
}

// cantAppend makes a server fail to write its append-only file.
func cantAppend(t *testing.T, s *redistest.Server) {
	s.Fill()
	for deadline := time.Now().Add(10 * time.Second); !redis.HasErrorPrefix(s.Client().Set(t.Context(), "a", "b", 0).Err(), "MISCONF"); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the server writes its file")
		}
	}
}

// busy makes a server run a script for as long as the test.
func busy(t *testing.T, s *redistest.Server) {
	runs(t, s, "CONFIG|SET|lua-time-limit|1")
	client := redis.NewClient(&redis.Options{Addr: s.Addr(), ReadTimeout: -1, MaxRetries: -1})
	ended := make(chan struct{})
	go func() {
		_ = client.Eval(context.Background(), "while true do end", nil).Err()
		close(ended)
	}()
	t.Cleanup(func() {
		s.Kill()
		<-ended
		_ = client.Close()
	})
	for deadline := time.Now().Add(10 * time.Second); !redis.HasErrorPrefix(s.Client().Get(t.Context(), "a").Err(), "BUSY"); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the server isn't busy")
		}
	}
}

// runs has a server run commands, each with its arguments between bars.
func runs(t *testing.T, s *redistest.Server, commands ...string) {
	t.Helper()
	for _, command := range commands {
		var args []any
		for arg := range strings.SplitSeq(command, "|") {
			args = append(args, arg)
		}
		if err := s.Client().Do(t.Context(), args...).Err(); err != nil {
			t.Fatalf("%s: %v", command, err)
		}
	}
}

// TestRefusals: what a server itself refuses comes with what to do about it, and a mark.
func TestRefusals(t *testing.T) {
	t.Parallel()
	const user, password = "locks:secret@", "requirepass|secret"
	for name, c := range map[string]struct {
		settings  []string
		user      string // of the URL
		database  string
		make      []string // commands that make the server refuse
		provoke   func(*testing.T, *redistest.Server)
		undo      []string
		follows   bool   // the error says what to do on the server, and that helps
		code, say string // what the error has
	}{
		"out of memory":        {make: []string{"CONFIG|SET|maxmemory|1"}, follows: true, code: "OOM", say: "raise"},
		"too few replicas":     {make: []string{"CONFIG|SET|min-replicas-to-write|1"}, follows: true, code: "NOREPLICAS", say: "bring them back"},
		"replica":              {make: []string{"REPLICAOF|127.0.0.1|1"}, undo: []string{"REPLICAOF|NO|ONE"}, code: "READONLY", say: "name its master"},
		"replica without link": {make: []string{"REPLICAOF|127.0.0.1|1", "CONFIG|SET|replica-serve-stale-data|no"}, undo: []string{"REPLICAOF|NO|ONE"}, code: "MASTERDOWN", say: "name the master"},
		"can't save":           {provoke: cantSave, follows: true, code: "MISCONF", say: "disk"},
		"full disk":            {settings: []string{"--appendonly", "yes", "--appendfsync", "everysec"}, provoke: cantAppend, follows: true, code: "MISCONF", say: "append-only file"},
		"busy":                 {provoke: busy, follows: true, code: "BUSY", say: "SCRIPT KILL"},
		"no password":          {make: []string{"CONFIG|SET|" + password}, undo: []string{"CONFIG|SET|requirepass|"}, code: "NOAUTH", say: "password"},
		"wrong password":       {user: "default:another@", make: []string{"CONFIG|SET|" + password}, code: "WRONGPASS", say: "password is wrong"},
		"no EVAL":              {user: user, make: []string{"ACL|SETUSER|locks|on|>secret|~*|+@all|-eval"}, undo: []string{"ACL|SETUSER|locks|+eval"}, code: "NOPERM", say: "rights"},
		"no RPUSH":             {user: user, make: []string{"ACL|SETUSER|locks|on|>secret|~*|+@all|-rpush"}, undo: []string{"ACL|SETUSER|locks|+rpush"}, code: "script", say: "rights"},
		"no SELECT":            {user: user, database: "/1", make: []string{"ACL|SETUSER|locks|on|>secret|~*|+@all|-select"}, undo: []string{"ACL|SETUSER|locks|+select"}, code: "NOPERM", say: "rights"},
		"other keys":           {user: user, make: []string{"ACL|SETUSER|locks|on|>secret|~other:*|+@all"}, undo: []string{"ACL|SETUSER|locks|~redlock:*"}, code: "NOPERM", say: "rights"},
		"no such database":     {database: "/99", code: "DB index", say: "leave the database out"},
		"cluster, no slots":    {settings: []string{"--cluster-enabled", "yes"}, code: "CLUSTERDOWN", say: "CLUSTER INFO"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := redistest.Start(t, 1, c.settings...)[0]
			runs(t, s, c.make...)
			if c.provoke != nil {
				c.provoke(t, s)
			}
			m := dial(t, "redis://"+c.user+s.Addr()+c.database)
			requireUnusable(t, m, c.code, c.say)
			switch {
			case c.follows:
				s.Follow(acquireOnce(m).Error())
			case c.undo == nil:
				return
			}
			runs(t, s, c.undo...)
			err := acquireOnce(m)
			for deadline := time.Now().Add(10 * time.Second); redis.HasErrorPrefix(err, "BUSY") && time.Now().Before(deadline); err = acquireOnce(m) {
				time.Sleep(time.Millisecond) // the script that was killed ends at its next look
			}
			if err != nil {
				t.Errorf("when all is well: %v", err)
			}
		})
	}
}

// requireUnusable has a master refuse an acquire, with these words.
func requireUnusable(t *testing.T, m *Master, words ...string) {
	t.Helper()
	err := acquireOnce(m)
	for _, word := range words {
		if !strings.Contains(fmt.Sprint(err), word) {
			t.Errorf("%v, want %q", err, word)
		}
	}
	if strings.Contains(fmt.Sprint(err), "secret") {
		t.Errorf("%v tells the password", err)
	}
	if !errors.Is(err, protocol.ErrUnusable) {
		t.Errorf("%v is not marked", err)
	}
}

// TestLoadingIsRefused has a server start anew with much to load.
func TestLoadingIsRefused(t *testing.T) {
	t.Parallel()
	const often = "loading-process-events-interval-bytes"
	if redistest.Start(t, 1)[0].Client().ConfigGet(t.Context(), often).Val()[often] == "" {
		t.Skip("this server can't be made to load slowly")
	}
	s := redistest.Start(t, 1, "--key-load-delay", "1000", "--"+often, "1024")[0]
	runs(t, s, "EVAL|for i = 1, 20000 do redis.call('SET', i, i) end return 1|0", "SAVE")
	s.Kill()
	s.Restart()
	requireUnusable(t, dial(t, s.URL()), "LOADING", "from disk")
}

// TestOneKeyIsRefused: a server that refuses one key is of use for others.
func TestOneKeyIsRefused(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t, 1)[0]
	runs(t, s, "SET|redlock:{key}|text")
	if err := acquireOnce(dial(t, s.URL())); !strings.Contains(fmt.Sprint(err), "WRONGTYPE ") || errors.Is(err, protocol.ErrUnusable) || !errors.Is(err, protocol.ErrRefused) {
		t.Errorf("%v, want WRONGTYPE, marked as refused and not as unusable", err)
	}
}
