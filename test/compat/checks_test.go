package compat

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/internal/tests/redistest"
)

const (
	longTTL  = 30 * time.Second // of locks that must not be lost on a busy machine
	shortTTL = 9 * time.Second  // where something has to happen at the next renewal
)

type check struct {
	name  string
	check func(t *testing.T, a, b version) error
}

// checks are what two versions must do together. Each gets them in both orders.
var checks = []check{
	{"one holder", oneHolder},
	{"one line", oneLine},
	{"inspect", inspection},
	{"forced release", forcedRelease},
	{"results", results},
	{"remembered responses", rememberedResponses},
	{"sets of masters", setsOfMasters},
}

// awaitInLine waits until a process stands in line on a quorum of the masters, as another one sees it.
func awaitInLine(observer, waiter *process, key string) error {
	for deadline := time.Now().Add(bound); ; time.Sleep(5 * time.Millisecond) {
		a, err := observer.call(Request{Do: "inspect", Key: key})
		if err != nil && !a.NoQuorum { // in time, on a busy machine
			return err
		}
		places := 0
		for _, master := range a.Inspected.Masters {
			if slices.ContainsFunc(master.Queue, func(w struct{ Process string }) bool { return w.Process == waiter.name }) {
				places++
			}
		}
		if places > len(a.Inspected.Masters)/2 {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%s doesn't see %s in line: %+v", observer.name, waiter.name, a.Inspected)
		}
	}
}

// awaitSubscribed waits until so many processes listen on each master: one that doesn't yet loses its place when it is its turn.
func awaitSubscribed(t *testing.T, servers []*redistest.Server, n int) error {
	for deadline := time.Now().Add(bound); ; time.Sleep(5 * time.Millisecond) {
		if !slices.ContainsFunc(servers, func(s *redistest.Server) bool {
			return len(s.Client().PubSubChannels(t.Context(), "redlock:wake:*").Val()) < n
		}) {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("fewer than %d processes are subscribed", n)
		}
	}
}

// oneLine has processes of both versions wait for a lock in turn, so that each is woken by one of the other version.
func oneLine(t *testing.T, a, b version) error {
	const key = "key"
	servers := redistest.Start(t, 3)
	masters := redistest.URLs(servers)
	holder, observer := a.start(t, "holder", masters, longTTL), b.start(t, "observer", masters, longTTL)
	var waiters []*process
	for i, v := range []version{b, a, b, a} {
		waiters = append(waiters, v.start(t, fmt.Sprint(i), masters, longTTL))
	}
	woken := make(map[string]int) // by the version of who was woken: the one before was of the other
	h, err := holder.lock(key)
	if err != nil {
		return err
	}
	ids, answers := make([]int, len(waiters)), make([]<-chan Answer, len(waiters))
	for i, w := range waiters {
		ids[i], answers[i] = w.ask(Request{Do: "lock", Key: key})
		if err := awaitSubscribed(t, servers, i+1); err != nil {
			return err
		}
		if err := awaitInLine(holder, w, key); err != nil {
			return err
		}
		if err := awaitInLine(observer, w, key); err != nil {
			return err
		}
	}
	for i, w := range waiters {
		if err := h.unlock(); err != nil {
			return err
		}
		var afterIt <-chan Answer
		if i+1 < len(waiters) {
			afterIt = answers[i+1]
		}
		select {
		case <-afterIt:
			return fmt.Errorf("%s got the lock before %s, which came first", waiters[i+1].name, w.name)
		case answer := <-answers[i]:
			if answer.Error != "" {
				return errors.New(answer.Error)
			}
			if answer.Woken {
				woken[w.version]++
			}
			h = held{w, ids[i], answer.Fence}
		case <-time.After(bound):
			return fmt.Errorf("%s, the next in line, doesn't get the lock", w.name)
		}
	}
	if err := h.unlock(); err != nil {
		return err
	}
	if woken[a.name] == 0 || woken[b.name] == 0 {
		return fmt.Errorf("of %d, only %v were woken when the lock became free", len(waiters), woken)
	}
	return nil
}

// inspection shows a holder and a waiter of one version to the other.
func inspection(t *testing.T, a, b version) error {
	const key = "key"
	masters := redistest.URLs(redistest.Start(t, 3))
	holder, observer, waiter := a.start(t, "holder", masters, longTTL), b.start(t, "observer", masters, longTTL), a.start(t, "waiter", masters, longTTL)
	h, err := holder.lock(key)
	if err != nil {
		return err
	}
	id, answer := waiter.ask(Request{Do: "lock", Key: key})
	if err := awaitInLine(observer, waiter, key); err != nil {
		return err
	}
	seen, err := observer.answered(Request{Do: "inspect", Key: key})
	if err != nil {
		return err
	}
	if i := seen.Inspected; !i.Held || i.Fence != h.fence || i.Holder != holder.name || i.TTL <= 0 {
		return fmt.Errorf("%s sees %+v, want the lock of %s with fencing token %d", observer.name, i, holder.name, h.fence)
	}
	if err := h.unlock(); err != nil {
		return err
	}
	next, err := waiter.wait("lock", answer)
	if err != nil {
		return err
	}
	return held{waiter, id, next.Fence}.unlock()
}

// forcedRelease takes a lock away from a process of the other version, which must notice and not take it back.
func forcedRelease(t *testing.T, a, b version) error {
	const key = "key"
	masters := redistest.URLs(redistest.Start(t, 3))
	holder, operator := a.start(t, "holder", masters, shortTTL), b.start(t, "operator", masters, shortTTL)
	h, err := holder.lock(key)
	if err != nil {
		return err
	}
	force := Request{Do: "force", Key: key, Fencing: h.fence}
	switch a, err := operator.call(force); {
	case a.NoQuorum: // it may be released all the same, and then has ended for the next try
		_, _ = operator.answered(force)
	case err != nil:
		return err
	}
	if lost, err := holder.call(Request{Do: "lost", Lock: h.id}); !lost.Forced {
		return fmt.Errorf("the holder isn't told that its lock was released by force: %v", err)
	}
	next, err := operator.lock(key)
	if err != nil {
		return err
	}
	if next.fence <= h.fence {
		return fmt.Errorf("fencing token %d after %d", next.fence, h.fence)
	}
	return next.unlock()
}

// results leaves a result that the other version meets.
func results(t *testing.T, a, b version) error {
	const key, want = "key", "paid"
	masters := redistest.URLs(redistest.Start(t, 3))
	first, second := a.start(t, "first", masters, longTTL), b.start(t, "second", masters, longTTL)
	h, err := first.lock(key)
	if err != nil {
		return err
	}
	if a, err := h.call(Request{Do: "unlock", Lock: h.id, Result: want}); err != nil && !a.NoQuorum { // the masters remember it all the same
		return err
	}
	if met, err := second.call(Request{Do: "lock", Key: key, Recall: true}); !met.Done || met.Result != want {
		return fmt.Errorf("%s has met the result %q, %v; want %q", second.name, met.Result, err, want)
	}
	return nil
}

// rememberedResponses repeats a payment at the other version, which must replay the response, and refuse another payment with the ID.
func rememberedResponses(t *testing.T, a, b version) error {
	masters := redistest.URLs(redistest.Start(t, 3))
	first, second := a.start(t, "first", masters, longTTL), b.start(t, "second", masters, longTTL)
	pay := func(p *process, body string) (Answer, error) {
		for deadline := time.Now().Add(bound); ; {
			a, err := p.call(Request{Do: "pay", Key: "payment-1", Body: body})
			if a.Status != http.StatusServiceUnavailable || time.Now().After(deadline) {
				return a, err
			}
		}
	}
	paid, err := pay(first, "100")
	if err != nil {
		return err
	}
	if paid.Status != http.StatusCreated || paid.Replayed {
		return fmt.Errorf("the payment is answered with %+v", paid)
	}
	again, err := pay(second, "100")
	if err != nil {
		return err
	}
	if !again.Replayed || again.Status != paid.Status || again.Result != paid.Result {
		return fmt.Errorf("its repeat is answered with %+v, want %+v", again, paid)
	}
	other, err := pay(second, "200")
	if err == nil && other.Status != http.StatusUnprocessableEntity {
		err = fmt.Errorf("another payment with its ID is answered with %+v", other)
	}
	return err
}

// setsOfMasters has a process of one version use two masters of the other's three, and another one instead of the third: it must be
// refused, because two majorities need not meet.
func setsOfMasters(t *testing.T, a, b version) error {
	masters := redistest.URLs(redistest.Start(t, 4))
	first := a.start(t, "first", masters[:3], shortTTL)
	h, err := first.lock("first")
	if err != nil {
		return err
	}
	later := b.start(t, "later", slices.Concat(masters[:2], masters[3:]), shortTTL)
	for deadline := time.Now().Add(bound); ; {
		id, answer := later.ask(Request{Do: "lock", Key: "later", Wait: time.Second})
		switch got, err := later.wait("lock", answer); {
		case err == nil: // until it has reached its third server
			if err := (held{later, id, got.Fence}).unlock(); err != nil {
				return err
			}
		case got.NoQuorum && strings.Contains(got.Error, strings.TrimPrefix(masters[2], "redis://")): // which only the other has
			return h.unlock()
		case !got.NoQuorum:
			return err
		}
		if time.Now().After(deadline) {
			return errors.New("a process with masters whose majority need not meet ours isn't refused")
		}
	}
}

// refusal has a process of one version lock, on the same masters as one of another version that keeps locks in another way: this must be refused
// for as long as that locks.
func refusal(t *testing.T, a, b version) error {
	masters := redistest.URLs(redistest.Start(t, 3))
	first := a.start(t, "first", masters, shortTTL)
	h, err := first.lock("key")
	if err != nil {
		return err
	}
	later := b.start(t, "later", masters, shortTTL)
	for range 3 {
		switch got, err := later.call(Request{Do: "lock", Key: "another", Wait: time.Second}); {
		case err == nil:
			return fmt.Errorf("%s locks beside %s", later.name, first.name)
		case !got.NoQuorum:
			return fmt.Errorf("%s is refused with %w", later.name, err)
		default:
			t.Log(later.name, "is refused:", got.Error)
		}
	}
	return h.unlock()
}
