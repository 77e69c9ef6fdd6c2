package redlock

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock/internal/memory"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
)

// processes wait on the server and in the model; the last one doesn't listen.
var processes = []string{"wake:a", "wake:b", "wake:c"}

// waiters are the names of those that wait: processes, and calls of theirs.
var waiters = []string{"wake:a", "wake:b", "wake:c", "wake:a#1", "wake:b#20", "wake:c#3"}

func (p *pair) listen() {
	p.heard = make(map[string]int)
	var ready sync.WaitGroup
	for _, process := range processes[:2] {
		for m, count := range map[Stepwise]int{p.real: 1, p.model: -1} {
			ready.Add(1)
			go func() {
				_ = m.Listen(p.t.Context(), process, time.Minute, ready.Done, func(w protocol.WakeUp) {
					p.mu.Lock()
					defer p.mu.Unlock()
					p.heard[fmt.Sprint(process, w)] += count
					p.woken++
				})
			}()
		}
	}
	ready.Wait()
}

// checkWakeUps wants both to have told the same processes the same.
func (p *pair) checkWakeUps() {
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		if p.heardByOne() <= p.ambiguous {
			return
		}
	}
	p.t.Errorf("%d wake-ups were heard from one of the two only; %d replies were near an expiry", p.heardByOne(), p.ambiguous)
}

// heardByOne counts the wake-ups that came from one of the two only.
func (p *pair) heardByOne() (n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, more := range p.heard {
		n += max(more, -more)
	}
	return n
}

// learnLease puts right when a place in the model's queue ends: a release doesn't tell when it was done.
func (p *pair) learnLease(cmd *protocol.Command, before, after time.Time) {
	us, err := p.client.HGet(context.Background(), companions(cmd.Key).leases, cmd.Process).Int64()
	lease := cmd.TTL
	ends := time.UnixMicro(us)
	if err != nil { // it has just ended
		ends = before.Add(lease)
	}
	if ends.Before(before.Add(lease-time.Millisecond)) || ends.After(after.Add(lease)) {
		p.t.Errorf("%+v: the place ends at %v, between %v and %v", cmd, ends, before, after)
	}
	if lease == 0 { // it had ended when it joined: the model needs no correction
		return
	}
	line, _ := protocol.SlotOf(cmd.Key)
	q, _, _ := p.model.Queues.Get(line, always)
	if !slices.ContainsFunc(q.Places, func(at memory.Place) bool { return at.Process == cmd.Process }) { // it was offered a slot at once, or didn't hear that
		return
	}
	q.Join(memory.Place{Process: cmd.Process, Ticket: cmd.Ticket, Ends: ends, Slots: int(cmd.Slots)})
}

// compareMark wants the token of a lock to be marked if anybody may wait: a plain release must not free it.
func (p *pair) compareMark(cmd *protocol.Command) {
	ctx := context.Background()
	token := p.holder(cmd.Key)
	if plain, _, known := p.model.Plain.Get(cmd.Key, p.now); token != "" && (token == plain) != known {
		p.t.Errorf("%+v: the token is %q, and the model has %q for one without a mark", cmd, token, plain)
	}
	_, slot := protocol.SlotOf(cmd.Key)
	if slot > 0 && token != "" && !strings.HasSuffix(token, "+") {
		p.t.Errorf("%+v: the token %q is not marked", cmd, token)
	}
	if waiters := p.client.ZCard(ctx, companions(cmd.Key).queue).Val(); token != "" && !strings.HasSuffix(token, "+") && waiters > 0 {
		p.t.Errorf("%+v: %d wait, and the token %q is not marked", cmd, waiters, token)
	}
	if entries := p.client.LRange(ctx, cmd.Key, 0, -1).Val(); !wellFormed(entries) {
		p.t.Errorf("%+v: the list has %q", cmd, entries)
	}
}

// compareQueues wants the same processes to wait, with the same tickets, but for those whose time ends
// just now.
func (p *pair) compareQueues(cmd *protocol.Command) {
	ctx := context.Background()
	waiting := p.client.ZRangeWithScores(ctx, companions(cmd.Key).queue, 0, -1).Val()
	leases := p.client.HGetAll(ctx, companions(cmd.Key).leases).Val()
	later := time.Now().Add(expirySlack)
	var want, got []string
	line, _ := protocol.SlotOf(cmd.Key)
	if q, _, ok := p.model.Queues.Get(line, always); ok {
		for _, at := range q.Places {
			if later.Before(at.Ends) {
				want = append(want, fmt.Sprint(at.Process, " ", at.Ticket))
			}
		}
	}
	for _, z := range waiting {
		process := z.Member.(string)
		if ends, _ := strconv.ParseInt(leases[process], 10, 64); ends > later.UnixMicro() {
			got = append(got, fmt.Sprint(process, " ", int64(z.Score)))
		}
	}
	if !slices.Equal(got, want) {
		p.t.Errorf("%+v: queue on the server %v, in the model %v", cmd, got, want)
	}
	if len(want) > 1 {
		p.seen["queue of two"]++
	}
}

// compareSlots wants the same slots to be believed taken, and offered to the same calls, but for what ends just now. The model goes on with
// the times of the server.
func (p *pair) compareSlots(cmd *protocol.Command) {
	line, _ := protocol.SlotOf(cmd.Key)
	offers := func(slots memory.Slots) (all map[string]memory.Offer) {
		all = make(map[string]memory.Offer)
		for _, name := range waiters {
			if offer, _, known := p.model.Offers.Get(line+name, always); known && slots[offer.Slot] == offer.Until {
				all[name] = offer
			}
		}
		return all
	}
	watched, ends, _ := p.model.Slots.Get(line, always)
	want := maps.Clone(watched)
	wantOffers := offers(want)
	p.adoptSlots(line)
	later := time.Now().Add(expirySlack)
	if len(want) > 0 && ends.Before(later) {
		return
	}
	got, _, _ := p.model.Slots.Get(line, always)
	gotOffers := offers(got)
	if len(gotOffers) > 0 {
		p.seen["slot offered in line"]++
	}
	same := len(got) == len(want)
	for slot, taken := range want {
		off := time.Duration(got[slot]-taken) * time.Microsecond
		same = same && off.Abs() <= 5*expirySlack
	}
	for _, name := range waiters {
		wanted, has := wantOffers[name], gotOffers[name]
		same = same && (wanted.Slot == has.Slot && (wanted.Until > 0) == (has.Until > 0) || max(wanted.Until, has.Until) <= later.UnixMicro())
	}
	if !same {
		p.t.Errorf("%+v:\nslots on the server %v, %v\nin the model %v, %v", cmd, got, gotOffers, want, wantOffers)
	}
}

// adoptSlots takes over what the server has.
func (p *pair) adoptSlots(line string) {
	ctx, now := context.Background(), time.Now()
	p.model.Slots.Delete(line)
	if all := p.client.ZRangeWithScores(ctx, line+":slots", 0, -1).Val(); len(all) > 0 {
		slots := make(memory.Slots)
		for _, z := range all {
			slot, _ := strconv.Atoi(z.Member.(string))
			slots[slot] = int64(z.Score)
		}
		p.model.Slots.Set(line, slots, now, p.left(line+":slots", now))
	}
	offers := p.client.HGetAll(ctx, line+":offers").Val()
	for _, name := range waiters {
		p.model.Offers.Delete(line + name)
		var offer memory.Offer
		if n, _ := fmt.Sscan(offers[name], &offer.Slot, &offer.Until); n == 2 {
			p.model.Offers.Set(line+name, offer, now, time.UnixMicro(offer.Until).Sub(now))
		}
	}
}
