package cli

import (
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/caddy-redlock/caddy-redlock/console"
	"github.com/caddy-redlock/caddy-redlock/internal/programs/doctor"
	"github.com/caddy-redlock/caddy-redlock/redlock"
	"github.com/caddy-redlock/caddy-redlock/redlock/inspect"
)

// TestTableOfDeliveries: a list with the long key of a delivery, and all else that a row may have, fits into a line.
func TestTableOfDeliveries(t *testing.T) {
	now := time.Now()
	delivery := console.Lock{Key: "sha256:" + strings.Repeat("0f", 32), Label: "webhooks-of-the-shop", Held: true, Since: now.Add(-61 * time.Minute), Until: now.Add(10 * time.Second),
		Fence: 1763812345678901, Waiting: 12345, Request: &inspect.Request{Method: "POST", Path: "/webhooks/stripe", ID: "c0ffee", TraceID: strings.Repeat("a", 32)}}
	var out strings.Builder
	(&locksCommand{calls: true}).print(sized{&out, lineWidth}, console.Locks{Locks: []console.Lock{delivery, {Key: "order:42", Waiting: 2, Line: []inspect.Call{{Label: "pay", Since: now.Add(-3 * time.Second), Request: &inspect.Request{Client: "alice at 10.0.0.7"}}}}}, Keys: 2, Held: 1, Waiting: 12346}, now)
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

// TestTableTellsRowsApart: what is left out of a cell is first what all have in common, and nothing is where no terminal limits it.
func TestTableTellsRowsApart(t *testing.T) {
	print := func(width int) string {
		var rows [][]string
		for i := range 3 {
			rows = append(rows, []string{fmt.Sprintf("redis://127.0.0.%d:27300", i+1), "-", fmt.Sprintf("POST /api/v2/shops/berlin/orders/%d/pay", 40+i)})
		}
		rows = append(rows, []string{"redis://127.0.0.9:27300", "held", "-"})
		var out strings.Builder
		table(sized{&out, width}, []string{"MASTER", "STATE", "REQUEST"}, rows, 0, 2)
		return out.String()
	}
	wide := "MASTER                   STATE  REQUEST\n"
	for i := range 3 {
		wide += fmt.Sprintf("redis://127.0.0.%d:27300  -      POST /api/v2/shops/berlin/orders/%d/pay\n", i+1, 40+i)
	}
	wide += "redis://127.0.0.9:27300  held   -\n"
	for width, want := range map[int]string{
		0:  wide,
		80: wide,
		60: "MASTER  STATE  REQUEST\n…1…     -      POST /api/v2/shops/berlin/orders/40/pay\n…2…     -      POST /api/v2/shops/berlin/orders/41/pay\n…3…     -      POST /api/v2/shops/berlin/orders/42/pay\n…9…     held   -\n",
		40: "MASTER  STATE  REQUEST\n…1…     -      …40…\n…2…     -      …41…\n…3…     -      …42…\n…9…     held   -\n",
	} {
		if got := print(width); got != want {
			t.Errorf("on %d columns\n%s\nwant\n%s", width, got, want)
		}
	}
}

// TestUnknownTurns: a process tells of a turn after two seconds, or never.
func TestUnknownTurns(t *testing.T) {
	var out strings.Builder
	printInspection(&out, "order:42", console.InspectedLocker{Held: true, Holder: "web1", Masters: []console.InspectedMaster{{Name: "a", Holder: "web1", Queue: []console.InspectedWaiter{{Process: "web2"}}}}}, time.Now())
	printSlots(&out, "1 of 2 slots taken", []console.TakenSlot{{Holder: "web3"}}, time.Now())
	if text := out.String(); !strings.Contains(text, "1. web2\n") || !strings.Contains(text, "web3") {
		t.Error(text)
	}
}

// TestTroublesOnce: what is wrong with several masters, or with all, is said once.
func TestTroublesOnce(t *testing.T) {
	type status = redlock.MasterStatus
	now := time.Now()
	since := now.Add(-5 * time.Second)
	var out strings.Builder
	printTroubles(&out, console.Locker{Error: "others were here first", Masters: []console.Master{
		{MasterStatus: status{Name: "a", Since: since}, Error: "others were here first"},
		{MasterStatus: status{Name: "b", Since: since, Until: now.Add(20 * time.Second)}, Error: "has restarted"},
		{MasterStatus: status{Name: "c"}},
		{MasterStatus: status{Name: "d", Since: since}, Error: "others were here first"},
	}}, now)
	if want := "a, d: others were here first, for 5.0s\nb: has restarted (for 5.0s so far; it grants locks again by itself in 20.0s)\n"; out.String() != want {
		t.Errorf("printed\n%s\nwant\n%s", out.String(), want)
	}
	out.Reset()
	printTroubles(&out, console.Locker{Error: "closed", Masters: []console.Master{{MasterStatus: status{Name: "a"}}}}, now)
	if out.String() != "closed\n" {
		t.Errorf("printed %q", out.String())
	}
	out.Reset()
	ends := now.Add(doctor.CertificateSoon)
	printTroubles(&out, console.Locker{Masters: []console.Master{
		{MasterStatus: status{Name: "a", CertificateUntil: ends}}, {MasterStatus: status{Name: "b", Evicts: true}},
		{MasterStatus: status{Name: "c", CertificateUntil: ends.Add(time.Second)}}, {MasterStatus: status{Name: "d", CertificateUntil: ends}},
	}}, now)
	text := strings.Join(strings.Fields(out.String()), " ")
	if !strings.HasPrefix(text, "! b: deletes locks when its memory is full. "+doctor.NoEviction+" ! a, d: its certificate, or one that vouches for it, ends soon") || !strings.HasSuffix(text, doctor.RenewCertificate) {
		t.Errorf("printed\n%s", out.String())
	}
}
