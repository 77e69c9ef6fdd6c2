package console_test

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/caddy-redlock/caddy-redlock/console"
	"github.com/caddy-redlock/caddy-redlock/internal/tests/redistest"
	"github.com/caddy-redlock/caddy-redlock/redlock"
)

// TestSlots: each slot that is held is listed, and a key that one holds at a time has none.
func TestSlots(t *testing.T) {
	t.Parallel()
	l := newLocker(t, redistest.Start(t, 1))
	for key, n := range map[string]int{"several": 3, "one": 1} {
		for range min(n, 2) {
			lock, err := l.TryLock(t.Context(), key, redlock.WithConcurrency(n))
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = lock.Unlock() }()
		}
	}
	seen := make(map[int]bool)
	all := ask[console.Locks](t, http.MethodGet, serveConsole(t, l)+"locks", http.StatusOK)
	for _, lock := range all.Locks {
		switch {
		case lock.Key == "several" && lock.Slot != nil && lock.Slots == 3 && lock.Fence > 0:
			seen[*lock.Slot] = true
		case lock.Key == "one" && lock.Slot == nil && lock.Slots == 0:
		default:
			t.Errorf("listed as %+v", lock)
		}
	}
	if len(seen) != 2 || all.Held != 3 {
		t.Errorf("slots %v, %d held, want two slots and 3 held", seen, all.Held)
	}
}

// Each slot that is taken is shown by a process that holds none, and released by its fence, and no other.
func TestReleaseSlots(t *testing.T) {
	t.Parallel()
	servers := redistest.Start(t, 3)
	holder, other := newLocker(t, servers), newLocker(t, servers, redlock.WithInstance("web2/43"))
	locks := make(map[int]*redlock.Lock)
	for range 3 {
		lock := mustLock(t, holder, "order:42", redlock.WithConcurrency(5), redlock.WithLabel("orders"))
		locks[lock.Slot()] = lock
	}
	log := new(book)
	base := serveConsole(t, other, console.WithLogger(log.logger()))
	path := base + "locks/order:42"
	seen := ask[console.Inspection](t, http.MethodGet, path, http.StatusOK).Lockers[0]
	if len(seen.Taken) != 3 || seen.Slots != 0 {
		t.Fatalf("%+v", seen)
	}
	if here := ask[console.Inspection](t, http.MethodGet, serveConsole(t, holder)+"locks/order:42", http.StatusOK).Lockers[0]; here.Slots != 5 || here.SlotsTaken() != "3 of 5 slots taken" || here.Taken[0].Turn == nil {
		t.Errorf("the holder shows %+v", here)
	}
	for _, s := range seen.Taken {
		lock := locks[s.Slot]
		if lock == nil || s.Fence != lock.Fence() || s.Holder != "web1/42" || s.TTLSeconds <= 0 {
			t.Errorf("%+v, want %v", s, lock)
		}
		at := fmt.Sprint(path, "?slot=", s.Slot)
		if one := ask[console.Inspection](t, http.MethodGet, at, http.StatusOK).Lockers[0]; one.Slot != s.Slot || one.Fence != s.Fence || one.Taken != nil {
			t.Errorf("slot %d alone: %+v", s.Slot, one)
		}
		if changed := ask[console.Problem](t, http.MethodDelete, at+"&fence=1", http.StatusConflict); changed.Fence != s.Fence || changed.Title != fmt.Sprintf("Slot %d of the key has another lock by now", s.Slot) {
			t.Errorf("%+v", changed)
		}
	}
	last := seen.Taken[2]
	free := 0 // a slot
	for locks[free] != nil {
		free++
	}
	if none := ask[console.Problem](t, http.MethodDelete, fmt.Sprint(path, "?slot=", free, "&fence=", last.Fence), http.StatusNotFound); none.Title != fmt.Sprintf("Nobody holds slot %d of the key", free) {
		t.Errorf("%+v", none)
	}
	if page := getPage(t, base+"?key=order:42"); !strings.Contains(page, "3 slots taken") || !strings.Contains(page, fmt.Sprintf("locks?key=order%%3A42&amp;slot=%d&amp;fence=%d", last.Slot, last.Fence)) {
		t.Errorf("the page lacks a slot: %s", page)
	}
	if page := getPage(t, fmt.Sprint(base, "?key=order:42&slot=", last.Slot)); !strings.Contains(page, fmt.Sprintf("order:42, slot %d", last.Slot)) {
		t.Errorf("the page of a slot: %s", page)
	}
	if done := ask[console.Released](t, http.MethodDelete, fmt.Sprint(path, "?slot=", last.Slot, "&fence=", last.Fence), http.StatusOK); done.Slot != last.Slot {
		t.Errorf("%+v", done)
	}
	if log.line(fmt.Sprintf("slot=%d fence=%d result=done", last.Slot, last.Fence)) == "" {
		t.Error("the log doesn't say which slot was released")
	}
	if left := ask[console.Inspection](t, http.MethodGet, path, http.StatusOK).Lockers[0]; len(left.Taken) != 2 {
		t.Errorf("after the release: %+v", left)
	}
	for _, slot := range []string{"-1", "256", "x", ""} {
		ask[console.Problem](t, http.MethodGet, path+"?slot="+slot, http.StatusBadRequest)
	}
}

func getPage(t *testing.T, url string) string {
	t.Helper()
	response, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
