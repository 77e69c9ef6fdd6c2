package redis

import (
	"context"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/caddy-redlock/caddy-redlock/internal/tests/redistest"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
)

// TestHashSlot compares our slots with a server's, and has no key whose companions are elsewhere, nor two with one
// Redis key.
func TestHashSlot(t *testing.T) {
	s := redistest.Start(t, 1, "--cluster-enabled", "yes")[0]
	keys := []string{"order:42", "user}1", "\x00\xff", "ключ"}
	for _, a := range []string{"", "{", "}", "{{", "a"} {
		for _, b := range []string{"", "{", "}", "}}", "{}", "a"} {
			for _, c := range []string{"", "{", "}", "b"} {
				if key := a + b + c; key != "" {
					keys = append(keys, key)
				}
			}
		}
	}
	seen := make(map[string]string)
	for _, key := range keys {
		name := protocol.Key("redlock", key)
		if other, ok := seen[name]; ok && other != key {
			t.Errorf("%q and %q have one key, %q", key, other, name)
		}
		seen[name] = key
		result := &protocol.Command{Key: name, Given: protocol.Given(key)}
		for _, companion := range []string{name, result.ResultOf() + ":result", name + ":fence", name + ":queue", name + ":leases"} {
			want, err := s.Client().ClusterKeySlot(context.Background(), companion).Result()
			if err != nil {
				t.Fatal(err)
			}
			if got := HashSlot(companion); got != int(want) || got != HashSlot(name) {
				t.Errorf("slot of %q is %d, want %d as the server says, and that of its lock, %d", companion, got, want, HashSlot(name))
			}
		}
	}
	if got := protocol.Key("redlock", "order:42"); got != "redlock:{order:42}" {
		t.Errorf("plain key is %q", got)
	}
}

// TestMovedTo: the address of a node is the one that can be reached from here, and has brackets around an IPv6 address.
func TestMovedTo(t *testing.T) {
	m := New(redis.Options{Addr: "10.0.0.1:6379"})
	for text, want := range map[string]string{
		"MOVED 3999 10.0.0.2:6380":     "10.0.0.2:6380",
		"MOVED 3999 fd00::2:6380":      "[fd00::2]:6380",
		"MOVED 3999 [fd00::2]:6380":    "[fd00::2]:6380",
		"MOVED 3999 :6380":             "10.0.0.1:6380",
		"MOVED 3999 127.0.0.1:6380":    "10.0.0.1:6380",
		"MOVED 3999 node-2.local:6380": "node-2.local:6380",
	} {
		if slot, addr, ok := m.MovedTo(serverError(text)); slot != 3999 || addr != want || !ok {
			t.Errorf("%s: %d, %s, %t", text, slot, addr, ok)
		}
	}
}
