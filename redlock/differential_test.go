package redlock

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/caddy-redlock/caddy-redlock/internal/redistest"
)

const (
	differentialCommands = 40_000
	// expirySlack is how far apart the two may end a lease: Redis counts in whole milliseconds, and looks at its clock once in a
	// round of its loop, which is long on a busy machine.
	expirySlack = 4 * time.Millisecond
	largest     = int64(1<<53 - 1) // of a fence
)

// pair runs each command on a real server and on the memory master, which is the specification.
type pair struct {
	t      *testing.T
	rand   *rand.Rand
	real   Master
	model  *memoryMaster
	client *redis.Client
	now    time.Time // the model's clock

	mu    sync.Mutex
	heard map[string]int // wake-ups from the server, less those from the model
	woken int            // both together

	seen      map[string]int // by operation and status
	ambiguous int            // answers too close to an expiry, or too slow, to tell which is right
}

func TestScriptsDoWhatTheModelDoes(t *testing.T) {
	server := redistest.Start(t, 1)[0]
	masters, err := Dial(server.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = masters[0].Close() }()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	p := &pair{t: t, rand: rand.New(rand.NewPCG(seed, 0)), real: masters[0], client: server.Client(), seen: make(map[string]int)}
	p.model = newMemoryMaster("model", func() time.Time { return p.now })
	p.listen()
	for range differentialCommands {
		p.step()
		if t.Failed() {
			return
		}
	}
	p.checkWakeUps()
	p.seen["wake-up"] = p.woken
	t.Logf("%v; %d near an expiry", p.seen, p.ambiguous)
	if p.ambiguous > differentialCommands/10 {
		t.Errorf("%d of %d answers were near an expiry, or slow: the test says too little", p.ambiguous, differentialCommands)
	}
	for _, answer := range []string{
		"acquire granted", "acquire again", "acquire held", "extend granted", "extend refilled", "extend expired", "extend not owner",
		"release released", "release expired", "release not owner", "expiry", "largest fence",
		"acquire queued behind another", "acquire passed", "queue of two", "wake-up",
		"acquire alone", "release plain", "release plain in vain",
	} {
		if p.seen[answer] < differentialCommands/1000 {
			t.Errorf("%q was seen %d times only", answer, p.seen[answer])
		}
	}
	p.checkTTLs()
}

// step runs a random command on both.
func (p *pair) step() {
	key := p.key()
	if p.rand.IntN(50) == 0 {
		p.forgetFence(key)
	}
	cmd := p.command(key)
	if last, _, _ := p.model.fences.get(key, time.Now()); cmd.Op == OpAcquire && last >= largest-1 {
		token, _, held := p.model.leases.get(key, time.Now())
		if !held || token == cmd.Former { // there is none above
			p.forgetFence(key)
		}
	}
	holder, ends, _ := p.model.leases.get(key, always)
	before := time.Now()
	real := cmd
	p.real.Do([]*Command{&real})
	after := time.Now()
	if real.Reply.Err != nil {
		p.t.Errorf("%+v: %v", cmd, real.Reply.Err)
		return
	}
	p.now = after // a release doesn't tell the time, and Redis has the clock of this host
	if real.Reply.Time != 0 {
		p.now = time.UnixMicro(real.Reply.Time)
	}
	if holder != "" && near(ends, before, after) || p.queueNear(key, before, after) || after.Sub(before) > expirySlack {
		p.ambiguous++
		p.adopt(key)
		return
	}
	if holder != "" && ends.Before(before) {
		p.seen["expiry"]++
		holder = ""
	}
	p.model.Do([]*Command{&cmd})
	if cmd.Op == OpRelease && cmd.Queue {
		p.learnLease(&cmd, before, after)
	}
	p.compare(&cmd, &real, holder)
}

// always is a time at which no lease of the model has expired.
var always time.Time

// near says whether the two may differ on whether a lease has ended.
func near(ends, from, to time.Time) bool {
	return !ends.Before(from.Add(-expirySlack)) && !ends.After(to.Add(expirySlack))
}

// key is one that isn't about to expire, if there is one.
func (p *pair) key() (key string) {
	for range 20 {
		key = fmt.Sprintf("redlock:{%d}", p.rand.IntN(8))
		now := time.Now()
		if holder, ends, _ := p.model.leases.get(key, always); holder == "" || !near(ends, now, now.Add(time.Millisecond)) && !p.queueNear(key, now, now.Add(time.Millisecond)) {
			break
		}
	}
	return key
}

func (p *pair) command(key string) Command {
	token := string(rune('a' + p.rand.IntN(3)))
	holder, _, held := p.model.leases.get(key, time.Now())
	if held && p.rand.IntN(3) == 0 {
		token = holder
	}
	now := time.Now().UnixMicro()
	cmd := Command{Op: OpAcquire, Key: key, Token: token, TTL: p.ttl(), Process: processes[p.rand.IntN(3)], Ticket: now - p.rand.Int64N(4), Queue: p.rand.IntN(4) == 0}
	if p.rand.IntN(5) == 0 {
		cmd.Ticket = TryTicket
	}
	switch p.rand.IntN(5) {
	case 0:
		cmd.Op = OpRelease
		cmd.Alone = !cmd.Queue && p.rand.IntN(2) == 0 // also where it isn't true
	case 1, 2:
		cmd.Op = OpExtend
		cmd.Fence = p.pick(0, 1, now, now+1000, 1<<46+1, 1<<52+1, largest-2, largest-1, largest)
		cmd.RefillUntil = p.pick(0, now-1_000_000, now+1_000_000, now+60_000_000)
	default:
		if p.rand.IntN(3) == 0 {
			cmd.Former, cmd.Token = token, string(rune('a'+p.rand.IntN(3)))+"'"
		}
		slack := fenceSlack.Microseconds()
		cmd.Fence = p.pick(now, now-50, now+50, now-slack/2, now+slack/2, now-10*slack, now+10*slack, 0, -1, 1, largest, 1<<62)
	}
	return cmd
}

func (p *pair) pick(values ...int64) int64 { return values[p.rand.IntN(len(values))] }

// ttl is a short one, which ends within the test, or one that doesn't.
func (p *pair) ttl() time.Duration {
	if p.rand.IntN(2) == 0 {
		return time.Duration(1+p.rand.IntN(40)) * time.Millisecond
	}
	return time.Minute
}

// forgetFence does what a minute without a lock does.
func (p *pair) forgetFence(key string) {
	p.client.Del(context.Background(), companions(key).fence)
	p.model.fences.delete(key)
}

// adopt takes over what the server has.
func (p *pair) adopt(key string) {
	ctx := context.Background()
	p.model.leases.delete(key)
	if token, err := p.client.LIndex(ctx, key, 0).Result(); err == nil {
		ends := time.UnixMilli(p.client.PExpireTime(ctx, key).Val().Milliseconds())
		p.model.leases.set(key, strings.TrimSuffix(token, "+"), ends, 0)
	}
	p.model.fences.delete(key)
	if fence, err := p.client.Get(ctx, companions(key).fence).Int64(); err == nil {
		p.model.fences.set(key, fence, time.Now(), fenceTTL)
	}
	p.model.queues.delete(key)
	for _, z := range p.client.ZRangeWithScores(ctx, companions(key).queue, 0, -1).Val() {
		process := z.Member.(string)
		ends, _ := p.client.HGet(ctx, companions(key).leases, process).Int64()
		p.model.join(&Command{Key: key, Process: process, Ticket: int64(z.Score), TTL: time.Until(time.UnixMicro(ends))}, time.Now())
	}
}

// compare wants the same answer from both, and the same fence stored.
func (p *pair) compare(model, real *Command, holder string) {
	want, got := model.Reply, real.Reply
	if got.Alone {
		p.seen["acquire alone"]++
	}
	if got.Status != want.Status || got.Fence != want.Fence || got.Holder != want.Holder || got.Time != want.Time || got.Former != want.Former {
		p.t.Errorf("%+v, held by %q:\nserver %+v\nmodel  %+v", model, holder, got, want)
	}
	if off := (got.TTL - want.TTL).Abs(); off > 5*expirySlack {
		p.t.Errorf("%+v: the holder's lease lasts %v, want %v", model, got.TTL, want.TTL)
	}
	stored, err := p.client.Get(context.Background(), companions(model.Key).fence).Result()
	if last, _, known := p.model.fences.get(model.Key, p.now); known && stored != fmt.Sprint(last) || !known && err != redis.Nil {
		p.t.Errorf("%+v: fence stored is %q, want %d", model, stored, last)
	}
	if stored == fmt.Sprint(largest) {
		p.seen["largest fence"]++
	}
	p.compareQueues(model)
	p.compareMark(model)
	if model.Alone && model.Reply.Status == StatusReleased {
		p.seen[map[bool]string{true: "release plain", false: "release plain in vain"}[real.Alone]]++
	}
	p.seen[operation(model, holder)]++
}

func operation(cmd *Command, holder string) string {
	name := map[Op]string{OpAcquire: "acquire", OpExtend: "extend", OpRelease: "release"}[cmd.Op]
	switch {
	case cmd.Op == OpAcquire && cmd.Reply.Status == StatusHeld && cmd.Reply.Holder == "":
		return name + " queued behind another"
	case cmd.Op == OpAcquire && cmd.Reply.Former == StatusReleased && cmd.Reply.Status == StatusGranted:
		return name + " passed"
	case cmd.Op == OpAcquire && holder == cmd.Token:
		return name + " again"
	case cmd.Op == OpExtend && cmd.Reply.Status == StatusGranted && holder == "":
		return name + " refilled"
	}
	return name + " " + map[Status]string{StatusGranted: "granted", StatusHeld: "held", StatusReleased: "released",
		StatusExpired: "expired", StatusNotOwner: "not owner"}[cmd.Reply.Status]
}

// checkTTLs wants every key to end, and the leases when the model says.
func (p *pair) checkTTLs() {
	ctx := context.Background()
	for _, key := range p.client.Keys(ctx, "*").Val() {
		left := p.client.PTTL(ctx, key).Val()
		limit := time.Minute
		if strings.HasSuffix(key, "}") { // a lock
			_, ends, _ := p.model.leases.get(key, always)
			limit = time.Until(ends) + time.Second
		}
		if left == -1 || left > max(limit, 0) { // -1: it never ends; -2: it just has
			p.t.Errorf("%s lives for %v, want at most %v", key, left, limit)
		}
	}
}
