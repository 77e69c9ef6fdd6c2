package redlock

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// processes wait on the server and in the model; the last one doesn't listen.
var processes = []string{"wake:a", "wake:b", "wake:c"}

func (p *pair) listen() {
	p.heard = make(map[string]int)
	var ready sync.WaitGroup
	for _, process := range processes[:2] {
		for m, count := range map[Master]int{p.real: 1, p.model: -1} {
			ready.Add(1)
			go func() {
				_ = m.Listen(p.t.Context(), process, ready.Done, func(w WakeUp) {
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
	p.t.Errorf("%d wake-ups were heard from one of the two only; %d answers were near an expiry", p.heardByOne(), p.ambiguous)
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
func (p *pair) learnLease(cmd *Command, before, after time.Time) {
	us, err := p.client.HGet(context.Background(), companions(cmd.Key).leases, cmd.Process).Int64()
	ends := time.UnixMicro(us)
	if err != nil { // it has just ended
		ends = before.Add(cmd.TTL)
	}
	if ends.Before(before.Add(cmd.TTL-time.Millisecond)) || ends.After(after.Add(cmd.TTL)) {
		p.t.Errorf("%+v: the place ends at %v, between %v and %v", cmd, ends, before, after)
	}
	q, _, _ := p.model.queues.get(cmd.Key, always)
	q.join(place{cmd.Process, cmd.Ticket, ends})
}

func (p *pair) queueNear(key string, from, to time.Time) bool {
	q, _, ok := p.model.queues.get(key, always)
	return ok && slices.ContainsFunc(q.places, func(p place) bool { return near(p.ends, from, to) })
}

// compareMark wants the token of a lock to be marked if anybody waits: a plain release must not free it.
func (p *pair) compareMark(cmd *Command) {
	ctx := context.Background()
	token := p.client.LIndex(ctx, cmd.Key, 0).Val()
	if waiters := p.client.ZCard(ctx, companions(cmd.Key).queue).Val(); token != "" && !strings.HasSuffix(token, "+") && waiters > 0 {
		p.t.Errorf("%+v: %d wait, and the token %q is not marked", cmd, waiters, token)
	}
	if entries := p.client.LLen(ctx, cmd.Key).Val(); entries > 1 {
		p.t.Errorf("%+v: %d entries", cmd, entries)
	}
}

// compareQueues wants the same processes to wait, with the same tickets, but for those whose time ends
// just now.
func (p *pair) compareQueues(cmd *Command) {
	ctx := context.Background()
	waiting := p.client.ZRangeWithScores(ctx, companions(cmd.Key).queue, 0, -1).Val()
	leases := p.client.HGetAll(ctx, companions(cmd.Key).leases).Val()
	later := time.Now().Add(expirySlack)
	var want, got []string
	if q, _, ok := p.model.queues.get(cmd.Key, always); ok {
		for _, at := range q.places {
			if later.Before(at.ends) {
				want = append(want, fmt.Sprint(at.process, " ", at.ticket))
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
