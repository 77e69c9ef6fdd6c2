package cli

import (
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/caddy-redlock/caddy-redlock/console"
)

// TestTableOfDeliveries: a list with the long key of a delivery, and all else that a row may have, fits into a line.
func TestTableOfDeliveries(t *testing.T) {
	now := time.Now()
	delivery := console.Lock{Key: "sha256:" + strings.Repeat("0f", 32), Rule: "webhooks-of-the-shop", Held: true, Since: now.Add(-61 * time.Minute), Until: now.Add(10 * time.Second),
		Fence: 1763812345678901, Waiting: 12345, Request: &console.Request{Method: "POST", Path: "/webhooks/stripe", ID: "c0ffee", TraceID: strings.Repeat("a", 32)}}
	var out strings.Builder
	(&locksCommand{calls: true}).print(&out, console.Locks{Locks: []console.Lock{delivery, {Key: "order:42", Waiting: 2, Line: []console.Call{{Rule: "pay", Since: now.Add(-3 * time.Second), Request: &console.Request{Client: "alice at 10.0.0.7"}}}}}, Keys: 2, Held: 1, Waiting: 12346}, now)
	for line := range strings.Lines(out.String()) {
		if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > lineWidth {
			t.Errorf("%d columns: %s", n, line)
		}
	}
	if !strings.Contains(out.String(), "waits 3.0s") {
		t.Errorf("the call that waits is not listed:\n%s", out.String())
	}
	if !strings.Contains(out.String(), "1763812345678901") {
		t.Error("the fencing token is cut: it is needed for a release")
	}
}

// TestTroublesOnce: what is wrong with several masters, or with all, is said once.
func TestTroublesOnce(t *testing.T) {
	now := time.Now()
	since := now.Add(-5 * time.Second)
	var out strings.Builder
	printTroubles(&out, console.Locker{Error: "others were here first", Masters: []console.Master{
		{Name: "a", Error: "others were here first", Since: since},
		{Name: "b", Error: "has restarted", Since: since, Until: now.Add(20 * time.Second)},
		{Name: "c"},
		{Name: "d", Error: "others were here first", Since: since},
	}}, now)
	if want := "a, d: others were here first, for 5.0s\nb: has restarted (for 5.0s so far; it grants locks again by itself in 20.0s)\n"; out.String() != want {
		t.Errorf("printed\n%s\nwant\n%s", out.String(), want)
	}
	out.Reset()
	printTroubles(&out, console.Locker{Error: "closed", Masters: []console.Master{{Name: "a"}}}, now)
	if out.String() != "closed\n" {
		t.Errorf("printed %q", out.String())
	}
}
