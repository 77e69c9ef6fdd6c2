package redis

import (
	"context"
	"testing"

	"github.com/caddy-redlock/caddy-redlock/internal/redistest"
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
		for _, companion := range []string{name, name + ":fence", name + ":queue", name + ":leases"} {
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
