package middleware_test

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/middleware"
	"github.com/caddy-redlock/caddy-redlock/redlock"
	"github.com/caddy-redlock/caddy-redlock/redlock/simnet"
)

// inside lets requests into a handler, one of which counts, and keeps them there.
type inside struct {
	entered chan http.Header
	leave   chan struct{}
}

func newInside() *inside {
	return &inside{entered: make(chan http.Header), leave: make(chan struct{})}
}

func (i *inside) ServeHTTP(_ http.ResponseWriter, r *http.Request) {
	i.entered <- r.Header.Clone()
	<-i.leave
}

// fill starts n requests, waits until all are inside, and returns their slots. The function that it returns ends them.
func (i *inside) fill(t *testing.T, n int, request func()) (slots map[string]bool, end func()) {
	t.Helper()
	slots = make(map[string]bool)
	var all sync.WaitGroup
	for range n {
		all.Go(request)
		header := receive(t, i.entered, "requests inside")
		slots[strings.Join(header.Values(middleware.SlotHeader), ",")] = true
	}
	return slots, func() { close(i.leave); all.Wait() }
}

func TestConcurrency(t *testing.T) {
	t.Parallel()
	l := newLocker(t, live)
	room := newInside()
	h := orders(l, room.ServeHTTP, middleware.Rule{Concurrency: []int{3}, HeldStatus: http.StatusTooManyRequests})
	server := serve(t, h)
	forged := func(order string) []string {
		return []string{"Order", order, "Redlock-Slot", "7", "redlock_slot", "8"}
	}
	slots, end := room.fill(t, 3, func() { post(t, server.URL, forged("42")...) })
	defer end()
	if len(slots) != 3 || !slots["0"] || !slots["1"] || !slots["2"] {
		t.Errorf("slots %v, want 0, 1 and 2", slots)
	}
	refused := post(t, server.URL, forged("42")...)
	if refused.StatusCode != http.StatusTooManyRequests || refused.Header.Get("Retry-After") == "" || !strings.Contains(refused.body, "all 3 slots are taken") {
		t.Errorf("the fourth gets %d %v %s", refused.StatusCode, refused.Header, refused.body)
	}
	waited := post(t, serve(t, orders(l, ok, middleware.Rule{Concurrency: []int{3}, Wait: 1})).URL, "Order", "42")
	if waited.StatusCode != http.StatusLocked || !strings.Contains(waited.body, "all 3 slots were taken for the whole wait") {
		t.Errorf("one that waits gets %d %s", waited.StatusCode, waited.body)
	}
	if got := post(t, serve(t, orders(l, ok, middleware.Rule{Concurrency: []int{3}})).URL, "Order", "43"); got.StatusCode != http.StatusOK {
		t.Errorf("another key: %d %s", got.StatusCode, got.body)
	}
}

// A request with several keys has a slot of each.
func TestConcurrencyOfSeveralKeys(t *testing.T) {
	t.Parallel()
	l := newLocker(t, live)
	room := newInside()
	rule := middleware.Rule{Keys: []string{"all"}, Concurrency: []int{2}}
	server := serve(t, orders(l, room.ServeHTTP, rule))
	slots, end := room.fill(t, 2, func() { post(t, server.URL, "Order", "42", "Redlock-Slot", "7") })
	defer end()
	if len(slots) != 1 || !slots[""] {
		t.Errorf("slots %v, want none shown", slots)
	}
	if got := post(t, server.URL, "Order", "43"); got.StatusCode != http.StatusLocked || !strings.Contains(got.body, "all 2 slots are taken") {
		t.Errorf("a third: %d %s", got.StatusCode, got.body)
	}
	if got := post(t, serve(t, middleware.New(l, "order:{header.Order}", middleware.Rule{Concurrency: []int{3}})(http.HandlerFunc(ok))).URL, "Order", "42"); got.body != "served" {
		t.Errorf("a third in a wider rule with one of the keys: %d %s", got.StatusCode, got.body)
	}
}

// Each key of a rule may have a number of its own.
func TestConcurrencyOfEachKey(t *testing.T) {
	t.Parallel()
	l := newLocker(t, live)
	room := newInside()
	rule := middleware.Rule{Keys: []string{"tenant:{header.Tenant}"}, Concurrency: []int{1, 2}}
	long := strings.Repeat("a", 300) // its key is a hash
	server := serve(t, orders(l, room.ServeHTTP, rule))
	var order atomic.Int32
	_, end := room.fill(t, 2, func() { post(t, server.URL, "Order", fmt.Sprint(order.Add(1)), "Tenant", long) })
	defer end()
	for _, c := range []struct{ order, tenant, want string }{
		{"1", "b", "another request holds the lock"},
		{"3", long, "all 2 slots are taken"},
		{"3", "b", "served"},
	} {
		if got := post(t, serve(t, orders(l, ok, rule)).URL, "Order", c.order, "Tenant", c.tenant); !strings.Contains(got.body, c.want) {
			t.Errorf("order %s of %.1s: %d %s, want %s", c.order, c.tenant, got.StatusCode, got.body, c.want)
		}
	}
}

// Where two templates make one key, the smaller number holds.
func TestConcurrencyOfOneKeyTwice(t *testing.T) {
	t.Parallel()
	l := newLocker(t, live)
	for _, most := range [][]int{{2, 3}, {3, 2}} {
		room := newInside()
		server := serve(t, orders(l, room.ServeHTTP, middleware.Rule{Keys: []string{"order:42"}, Concurrency: most}))
		slots, end := room.fill(t, 2, func() { post(t, server.URL, "Order", "42") })
		if got := post(t, server.URL, "Order", "42"); len(slots) != 2 || !strings.Contains(got.body, "all 2 slots are taken") {
			t.Errorf("%v: slots %v, a third gets %d %s", most, slots, got.StatusCode, got.body)
		}
		end()
	}
}

// A rule inside another one with a number for each key compares those of the keys that both have.
func TestNestedConcurrencyOfEachKey(t *testing.T) {
	t.Parallel()
	l := newLocker(t, live)
	for _, c := range []struct {
		inner  middleware.Rule
		status int
	}{
		{middleware.Rule{}, http.StatusOK},
		{middleware.Rule{Keys: []string{"all"}}, http.StatusInternalServerError},
		{middleware.Rule{Keys: []string{"all"}, Concurrency: []int{1, 2}}, http.StatusOK},
		{middleware.Rule{Keys: []string{"all", "more"}, Concurrency: []int{5, 5, 1}}, http.StatusOK},
	} {
		inner := orders(l, ok, c.inner)
		if got := post(t, serve(t, orders(l, inner.ServeHTTP, middleware.Rule{Keys: []string{"all"}, Concurrency: []int{1, 2}})).URL, "Order", "42"); got.StatusCode != c.status {
			t.Errorf("%v inside of 1 and 2: %d %s", c.inner.Concurrency, got.StatusCode, got.body)
		}
		requireFree(t, l, "order:42")
		requireFree(t, l, "all")
	}
}

// A rule of one at a time shows no slot, whoever sends one.
func TestNoSlot(t *testing.T) {
	t.Parallel()
	l := newLocker(t, live)
	for name, rule := range map[string]middleware.Rule{"one at a time": {}, "dry run": {Concurrency: []int{3}, DryRun: true}} {
		handler := func(w http.ResponseWriter, r *http.Request) {
			turn, _ := middleware.TurnFromContext(r.Context())
			if slot, has := turn.Slot(); has || len(r.Header.Values("Redlock-Slot"))+len(r.Header.Values("redlock_slot")) > 0 {
				t.Errorf("%s: slot %d, header %v", name, slot, r.Header)
			}
			ok(w, r)
		}
		if got := post(t, serve(t, orders(l, handler, rule)).URL, "Order", "42", "Redlock-Slot", "7", "redlock_slot", "8"); got.body != "served" {
			t.Errorf("%s: %d %s", name, got.StatusCode, got.body)
		}
	}
}

// IDs are locked, and responses remembered, one at a time whatever the concurrency of the key is.
func TestConcurrencyOfDeliveries(t *testing.T) {
	t.Parallel()
	l := newLocker(t, live)
	room := newInside()
	server := serve(t, orders(l, room.ServeHTTP, middleware.Rule{Concurrency: []int{3}, Dedupe: "{header.Id}", Remember: longTTL}))
	_, end := room.fill(t, 1, func() { post(t, server.URL, "Order", "42", "Id", "a") })
	if got := post(t, server.URL, "Order", "42", "Id", "a"); got.StatusCode != http.StatusConflict {
		t.Errorf("a repeat beside the first: %d %s", got.StatusCode, got.body)
	}
	end()
	if got := post(t, server.URL, "Order", "42", "Id", "a"); got.StatusCode != http.StatusOK || got.Header.Get("Idempotency-Replayed") != "true" {
		t.Errorf("a repeat after the first: %d %v", got.StatusCode, got.Header)
	}
}

// A rule inside another one that holds the key shares its lock, unless that lets in more requests.
func TestNestedConcurrency(t *testing.T) {
	t.Parallel()
	l := newLocker(t, live)
	for _, c := range []struct {
		outer, inner int
		status       int
	}{
		{1, 3, http.StatusOK},
		{3, 3, http.StatusOK},
		{2, 3, http.StatusOK},
		{3, 1, http.StatusInternalServerError},
		{3, 2, http.StatusInternalServerError},
	} {
		slot, held := "none", -1
		var ended error
		inner := orders(l, func(w http.ResponseWriter, r *http.Request) { slot = r.Header.Get("Redlock-Slot"); ok(w, r) }, middleware.Rule{Concurrency: []int{c.inner}})
		got := post(t, serve(t, orders(l, func(w http.ResponseWriter, r *http.Request) {
			turn, _ := middleware.TurnFromContext(r.Context())
			held = turn.Lock.Slot()
			inner.ServeHTTP(w, r)
			ended = r.Context().Err()
		}, middleware.Rule{Concurrency: []int{c.outer}})).URL, "Order", "42")
		if got.StatusCode != c.status || ended != nil {
			t.Errorf("%d inside of %d: %d %s, %v", c.inner, c.outer, got.StatusCode, got.body, ended)
		}
		if c.status == http.StatusOK && slot != fmt.Sprint(held) {
			t.Errorf("%d inside of %d: slot %s, want %d", c.inner, c.outer, slot, held)
		}
		if c.status != http.StatusOK && (slot != "none" || !strings.Contains(got.body, "larger concurrency")) {
			t.Errorf("%d inside of %d is refused with %s", c.inner, c.outer, got.body)
		}
		requireFree(t, l, "order:42")
	}
}

// The upstream sees the slot of the rule around one without, as before it.
func TestSlotOfTheRuleAround(t *testing.T) {
	t.Parallel()
	l := newLocker(t, live)
	for name, rule := range map[string]middleware.Rule{"locks": {}, "passes": {OnMissingKey: middleware.Pass}, "dry run": {DryRun: true}} {
		outer, template := "", "inner:{header.Order}"
		if rule.OnMissingKey != "" {
			template = "{header.None}"
		}
		inner := middleware.New(l, template, rule)(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if slot := r.Header.Get("Redlock-Slot"); slot != outer || slot == "" || slot == "9" {
				t.Errorf("%s: slot %q outside and %q inside", name, outer, slot)
			}
			ok(w, r)
		}))
		server := serve(t, orders(l, func(w http.ResponseWriter, r *http.Request) {
			outer = r.Header.Get("Redlock-Slot")
			inner.ServeHTTP(w, r)
			if slot := r.Header.Get("Redlock-Slot"); slot != outer {
				t.Errorf("%s: slot %q before and %q behind the inner rule", name, outer, slot)
			}
		}, middleware.Rule{Concurrency: []int{2}}))
		if got := post(t, server.URL, "Order", "42", "Redlock-Slot", "9"); got.body != "served" {
			t.Errorf("%s: %d %s", name, got.StatusCode, got.body)
		}
	}
}

func TestDryRunOfConcurrency(t *testing.T) {
	t.Parallel()
	l := newLocker(t, live)
	room := newInside()
	var held atomic.Int32
	rule := orders(l, func(w http.ResponseWriter, r *http.Request) {
		if turn, _ := middleware.TurnFromContext(r.Context()); turn.Outcome == middleware.OutcomeHeld && turn.Detail == "all 2 slots are taken" {
			held.Add(1)
		}
		room.ServeHTTP(w, r)
	}, middleware.Rule{Concurrency: []int{2}, DryRun: true})
	server := serve(t, rule)
	_, end := room.fill(t, 3, func() { post(t, server.URL, "Order", "42") })
	end()
	if held.Load() != 1 {
		t.Errorf("%d of 3 would have been held, want 1", held.Load())
	}
}

func TestConcurrencyThatCantBe(t *testing.T) {
	t.Parallel()
	for want, rule := range map[string]middleware.Rule{
		"concurrency -1: must be from 1 to 256":                                   {Keys: []string{"{path.1}"}, Concurrency: []int{-1}},
		"concurrency 257: must be from 1 to 256":                                  {Keys: []string{"{path.1}"}, Concurrency: []int{257}},
		"concurrency: 2 numbers and 1 keys: want one for all, or one for each":    {Keys: []string{"{path.1}"}, Concurrency: []int{1, 2}},
		"concurrency 300: must be from 1 to 256":                                  {Keys: []string{"{path.1}", "a"}, Concurrency: []int{2, 300}},
		"concurrency: needs a key":                                                {IdempotencyKey: "required", Concurrency: []int{2}},
		`fence_header "redlock_slot": is the header of the slot`:                  {Keys: []string{"{path.1}"}, FenceHeader: "redlock_slot"},
		`key_header "Redlock-Slot": is the header of the slot`:                    {Keys: []string{"{path.1}"}, KeyHeader: "Redlock-Slot"},
		"{header.Redlock-Slot}: this is the header of the slot, which is removed": {Keys: []string{"{header.Redlock-Slot}"}},
	} {
		if _, err := middleware.Compile(rule); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %s", err, want)
		}
	}
	for want, rule := range map[string]middleware.Rule{
		"key       order:42\nslots     5: so many requests at a time\n":                                {Concurrency: []int{5}},
		"key       all\nslots     7: so many requests at a time with this key\nkey       order:42\nif": {Concurrency: []int{1, 7}, Keys: []string{"all"}},
	} {
		if text := middleware.Explain("order:{path.1}", newRequest(t, "http://x/orders/42"), rule).String(); !strings.Contains(text, want) {
			t.Errorf("explained as %s", text)
		}
	}
}

// max_hold ends the turn of one holder, whose slot is free then.
func TestMaxHoldOfASlot(t *testing.T) {
	t.Parallel()
	l := newLocker(t, live)
	room := newInside()
	_, end := room.fill(t, 1, func() {
		post(t, serve(t, orders(l, room.ServeHTTP, middleware.Rule{Concurrency: []int{2}})).URL, "Order", "42")
	})
	defer end()
	stuck := serve(t, orders(l, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, middleware.Rule{Concurrency: []int{2}, MaxHold: time.Millisecond}))
	if got := post(t, stuck.URL, "Order", "42"); got.StatusCode != http.StatusInternalServerError || !strings.Contains(got.body, "max_hold") {
		t.Errorf("the one that is stuck: %d %s", got.StatusCode, got.body)
	}
	if got := post(t, serve(t, orders(l, ok, middleware.Rule{Concurrency: []int{2}, Wait: bound})).URL, "Order", "42"); got.body != "served" {
		t.Errorf("the next one: %d %s", got.StatusCode, got.body)
	}
}

// Of many slots one becomes free much sooner than a request lasts.
func TestRetryAfterOfSlots(t *testing.T) {
	simnet.Run(t, 3, func(t *testing.T, net *simnet.Net) {
		const slots = 100
		l := net.Locker(t)
		rule := orders(l, func(_ http.ResponseWriter, _ *http.Request) { time.Sleep(3 * time.Second) }, middleware.Rule{Concurrency: []int{slots}})
		var all sync.WaitGroup
		for range 16 { // so that it is known how long they take
			all.Go(func() { serveInside(rule, "Order", "42") })
		}
		all.Wait()
		for range slots {
			lock, err := l.TryLock(t.Context(), "order:42", redlock.WithConcurrency(slots))
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = lock.Unlock() }()
		}
		got := serveInside(rule, "Order", "42")
		if got.StatusCode != http.StatusLocked {
			t.Fatalf("%d %s", got.StatusCode, got.body)
		}
		requireRetryAfter(t, got, time.Second)
	})
}

// Presets for webhooks and API keys know their IDs one at a time, beside a key with slots.
func TestConcurrencyOfAnIdempotencyKey(t *testing.T) {
	t.Parallel()
	l := newLocker(t, live)
	room := newInside()
	server := serve(t, orders(l, room.ServeHTTP, middleware.Rule{Concurrency: []int{3}, IdempotencyKey: "required", Scope: "{header.Authorization}", Remember: longTTL, RememberQuota: 1 << 20}))
	send := func(id string) received {
		return post(t, server.URL, "Order", "42", "Idempotency-Key", id, "Authorization", "a")
	}
	slots := make(map[string]bool)
	var all sync.WaitGroup
	for i := range 3 {
		all.Go(func() { send(fmt.Sprint("id", i)) })
		slots[receive(t, room.entered, "requests inside").Get(middleware.SlotHeader)] = true
	}
	if len(slots) != 3 {
		t.Errorf("slots %v, want three", slots)
	}
	if got := send("id1"); got.StatusCode != http.StatusConflict {
		t.Errorf("a repeat: %d %s", got.StatusCode, got.body)
	}
	if got := send("id3"); got.StatusCode != http.StatusLocked || !strings.Contains(got.body, "all 3 slots are taken") {
		t.Errorf("a fourth: %d %s", got.StatusCode, got.body)
	}
	close(room.leave)
	all.Wait()
	if got := send("id1"); got.Header.Get("Idempotency-Replayed") != "true" {
		t.Errorf("a repeat after the first: %d %v", got.StatusCode, got.Header)
	}
}
