package doctor

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/internal/base/inside"
	"github.com/caddy-redlock/caddy-redlock/internal/programs/connect"
)

// TestDenials has the words of servers that the other tests don't run on.
func TestDenials(t *testing.T) {
	for text, want := range map[string]string{
		"NOPERM this user has no permissions to run the 'lset' command or its subcommand":     "+lset", // Redis 6.2, KeyDB
		"NOPERM this user has no permissions to access one of the keys used as arguments":     "~",
		"NOPERM this user has no permissions to access one of the channels used as arguments": "&",
		"NOPERM User locks has no permissions to run the 'client|setname' command":            "+client|setname", // Redis 7
		"NOPERM No permissions to access a key":                                               "~",
		"NOPERM No permissions to access a channel":                                           "&",
		"NOPERM User locks has no permissions to access the 'redlock:{k}' key":                "~", // 7.2 and newer may name it
		"NOPERM User locks has no permissions to access the 'redlock:wake:k' channel":         "&",
		"NOPERM in words that nobody has seen":                                                "+tried",
	} {
		var r rights
		if r.note("tried", text); !slices.Equal(r.missing, []string{want}) {
			t.Errorf("%s: %q, want %s", text, r.missing, want)
		}
	}
	var r rights
	if r.note("lset", "ERR unknown command 'lset', with args beginning with: "); !slices.Equal(r.unknown, []string{"LSET"}) {
		t.Errorf("unknown commands %q", r.unknown)
	}
	if r.note("lset", "WRONGTYPE Operation against a key") || len(r.missing) > 0 || len(r.unknown) > 1 {
		t.Error("what is no denial is one")
	}
}

// TestLatencyIsEnough: the timeout and the ttl that are advised are enough for the round trip that was measured.
func TestLatencyIsEnough(t *testing.T) {
	for rtt := time.Millisecond; rtt < time.Second; rtt += 1234567 * time.Nanosecond {
		x := &examination{Settings: Settings{Options: connect.Options{Timeout: rtt / 2}, LeastTTL: 19 * rtt}, Examination: &inside.Examination{RoundTrip: rtt}}
		var timeout, ttl string
		if _, err := fmt.Sscanf(x.latency()[0].Advice, "Set timeout to at least %s", &timeout); err != nil {
			t.Fatal(err)
		}
		x.Timeout = set(t, timeout)
		if _, err := fmt.Sscanf(x.latency()[0].Advice, "Raise the ttl to at least %s", &ttl); err != nil {
			t.Fatal(err)
		}
		x.LeastTTL = set(t, ttl)
		if found := x.latency(); len(found) > 0 {
			t.Errorf("%v: %+v", rtt, found)
		}
	}
}

// set returns the duration that is advised.
func set(t *testing.T, advised string) time.Duration {
	t.Helper()
	d, err := time.ParseDuration(strings.TrimSuffix(advised, ","))
	if err != nil {
		t.Fatal(err)
	}
	return d
}
