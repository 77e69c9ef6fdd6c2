package redlock

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/caddy-redlock/caddy-redlock/internal/base/inside"
	"github.com/caddy-redlock/caddy-redlock/internal/tests/redistest"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/memory"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
)

const (
	// expirySlack is how far apart the two may end a lease: Redis counts in whole milliseconds, and looks at its clock once in a
	// round of its loop, which is long on a busy machine.
	expirySlack = 4 * time.Millisecond
	largest     = int64(1<<53 - 1) // of a fence
)

// pair runs each command on a real server and on the memory master, which is the specification.
type pair struct {
	t      *testing.T
	rand   *rand.Rand
	real   Stepwise
	direct Stepwise // the server, without a stream that sends again what is undecided
	model  *memory.Master
	client *redis.Client
	now    time.Time // the model's clock

	mu    sync.Mutex
	heard map[string]int // wake-ups from the server, less those from the model
	woken int            // both together

	seen      map[string]int // by operation and status
	ambiguous int            // replies too close to an expiry, or too slow, to tell which is right
}

func TestScriptsDoWhatTheModelDoes(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, 1)[0]
	masters, err := dialAll(func() inside.Access { return inside.Access{} }, server.URL())
	if err != nil {
		t.Fatal(err)
	}
	real := Streamed(masters[0])
	defer func() { _ = real.Close() }()
	direct, err := dialAll(func() inside.Access { return inside.Access{} }, server.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = direct[0].close() }()
	commands := 40_000
	if redistest.Few() {
		commands /= 10
	}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	p := &pair{t: t, rand: rand.New(rand.NewPCG(seed, 0)), real: real, direct: direct[0].impl.(Stepwise), client: server.Client(), seen: make(map[string]int)}
	p.model = memory.New("model", func() time.Time { return p.now })
	p.listen()
	steps := 0
	for ; (steps-p.ambiguous < commands || p.unseen(commands) != "") && steps < 10*commands; steps++ { // on a busy machine many replies tell nothing
		if p.rand.IntN(20) == 0 {
			p.together()
		} else {
			p.step()
		}
		if t.Failed() {
			return
		}
	}
	p.checkWakeUps()
	t.Logf("%v; %d wake-ups; %d near an expiry", p.seen, p.woken, p.ambiguous)
	if p.woken < commands/1000 {
		t.Errorf("%d wake-ups only", p.woken)
	}
	if steps-p.ambiguous < commands {
		t.Errorf("%d of %d replies were near an expiry, or slow: the test says too little", p.ambiguous, steps)
	}
	if reply := p.unseen(commands); reply != "" {
		t.Errorf("%q was seen %d times only", reply, p.seen[reply])
	}
	p.checkTTLs()
}

// unseen returns a reply that was seen too seldom among so many commands, or "".
func (p *pair) unseen(commands int) string {
	for _, reply := range []string{
		"acquire granted", "acquire again", "acquire held", "extend granted", "extend refilled", "extend expired", "extend not owner",
		"release released", "release expired", "release not owner", "expiry", "largest fence",
		"acquire queued behind another", "acquire passed", "queue of two",
		"inspect", "inspect queue", "force released", "force expired", "force not owner", "extend forced",
		"acquire done", "recall done", "recall expired", "result stored", "result not stored", "result stored in any case", "result forgotten", "inspect result", "store done", "store expired", "store not owner",
		"acquire alone", "fast acquire granted", "fast acquire undecided", "fast acquire done", "fast release granted", "fast release undecided", "fast extend granted", "fast extend undecided", "release plain", "release plain in vain",
		"slot granted", "acquire offered another slot", "slot offered in line", "slot granted as offered",
	} {
		if p.seen[reply] < commands/1000 {
			return reply
		}
	}
	return ""
}

// step runs a random command on both.
func (p *pair) step() {
	key := p.key()
	if p.rand.IntN(50) == 0 {
		p.forgetFence(key)
	}
	cmd := p.command(key)
	if last, _, _ := p.model.Fences.Get(key, time.Now()); cmd.Op == protocol.OpAcquire && last >= largest-1 {
		token, _, held := p.model.Leases.Get(key, time.Now())
		if !held || token == cmd.Former { // there is none above
			p.forgetFence(key)
		}
	}
	holder, ends, _ := p.model.Leases.Get(key, always)
	before := time.Now()
	real := cmd
	p.real.Do([]*protocol.Command{&real})
	after := time.Now()
	if real.Reply.Err != nil {
		p.t.Errorf("%+v: %v", cmd, real.Reply.Err)
		return
	}
	p.now = after // a release doesn't tell the time, and Redis has the clock of this host
	if real.Reply.Time != 0 {
		p.now = time.UnixMicro(real.Reply.Time)
	}
	if p.endsNear(key, before, after) || after.Sub(before) > expirySlack {
		p.ambiguous++
		line, _ := protocol.SlotOf(key)
		for slot := range slotsTried {
			p.adopt(protocol.SlotKey(line, slot))
		}
		return
	}
	if holder != "" && ends.Before(before) {
		p.seen["expiry"]++
		holder = ""
	}
	p.model.Do([]*protocol.Command{&cmd})
	if cmd.Alone && cmd.Reply.Status == protocol.StatusExpired { // in vain: the stream has sent the script
		cmd.Alone = false
		p.model.Do([]*protocol.Command{&cmd})
		if cmd.Reply.Status == protocol.StatusReleased {
			p.seen["release plain in vain"]++
		}
	}
	if cmd.Op == protocol.OpRelease && cmd.Queue {
		p.learnLease(&cmd, before, after)
	}
	p.compare(&cmd, &real, holder)
}

// always is a time at which no lease of the model has expired.
var always time.Time

// near says whether the two may differ on whether something has ended.
func near(ends, from, to time.Time) bool {
	return !ends.Before(from.Add(-expirySlack)) && !ends.After(to.Add(expirySlack))
}

// slotsTried is how many slots the keys of the test have.
const slotsTried = 3

// tokens are all that the test has.
var tokens = []string{"a", "b", "c", "a'", "b'", "c'"}

// endsNear says whether the two may differ on anything that they know of the key and of its other slots.
func (p *pair) endsNear(key string, from, to time.Time) bool {
	line, _ := protocol.SlotOf(key)
	q, queue, _ := p.model.Queues.Get(line, always)
	slots, watched, _ := p.model.Slots.Get(line, always)
	ends := []time.Time{queue, watched}
	if q != nil {
		for _, place := range q.Places {
			ends = append(ends, place.Ends)
		}
	}
	for _, taken := range slots {
		ends = append(ends, time.UnixMicro(taken))
	}
	for slot := range slotsTried {
		key := protocol.SlotKey(line, slot)
		_, lease, _ := p.model.Leases.Get(key, always)
		_, fence, _ := p.model.Fences.Get(key, always)
		_, result, _ := p.model.Results.Get(key, always)
		ends = append(ends, lease, fence, result)
		for _, token := range tokens {
			_, forced, _ := p.model.Forced.Get(key+token, always)
			ends = append(ends, forced)
		}
	}
	return slices.ContainsFunc(ends, func(end time.Time) bool { return near(end, from, to) })
}

// key is one that isn't about to expire, if there is one.
func (p *pair) key() (key string) {
	for range 20 {
		key = protocol.SlotKey(fmt.Sprintf("redlock:{%d}", p.rand.IntN(5)), int(p.pick(0, 0, 0, 0, 1, 2)))
		now := time.Now()
		if !p.endsNear(key, now, now.Add(time.Millisecond)) {
			break
		}
	}
	return key
}

func (p *pair) command(key string) protocol.Command {
	token := string(rune('a' + p.rand.IntN(3)))
	holder, _, held := p.model.Leases.Get(key, time.Now())
	if held && p.rand.IntN(3) == 0 {
		token = holder
	}
	now := time.Now().UnixMicro()
	cmd := protocol.Command{Op: protocol.OpAcquire, Key: key, Token: token, TTL: p.ttl(), Process: waiters[p.rand.IntN(len(waiters))], Ticket: now - p.rand.Int64N(4), Queue: p.rand.IntN(4) == 0}
	if p.rand.IntN(5) == 0 {
		cmd.Ticket = protocol.TryTicket
	}
	switch p.rand.IntN(14) {
	case 12:
		cmd.Op = protocol.OpRecall
	case 13:
		if cmd.Op = protocol.OpStore; p.rand.IntN(2) == 0 {
			cmd.Op = protocol.OpRecall
			break
		}
		cmd.Ask = p.store("stored", 2)
	case 0:
		cmd = protocol.Command{Op: protocol.OpInspect, Key: key}
	case 11:
		cmd = protocol.Command{Op: protocol.OpForce, Key: key, Token: token, TTL: p.ttl() % time.Second, Ask: &protocol.Force{By: []string{"by " + token, "2"}[p.rand.IntN(2)]}} // also by who has a number for a name
		cmd.TTL = max(cmd.TTL, 5*time.Millisecond)
	case 1, 2:
		cmd.Op = protocol.OpRelease
		if p.rand.IntN(3) == 0 {
			size := p.pick(3, 3, 3, protocol.ShortResult, protocol.ShortResult+1)
			cmd.Ask = p.store(strings.Repeat(string(rune('A'+p.rand.IntN(20))), int(size)-2)+"\r\n", 4)
		}
		if _, slot := protocol.SlotOf(key); slot > 0 || p.rand.IntN(3) == 0 {
			cmd.Ask, cmd.Slots = nil, uint16(slot+1+p.rand.IntN(slotsTried-slot))
			cmd.Leads = cmd.Slots > 1 && p.rand.IntN(3) > 0
		}
		cmd.Alone = !cmd.Queue && cmd.Ask == nil && p.rand.IntN(2) == 0 // also where it isn't true
	case 3, 4, 5, 6:
		cmd.Op = protocol.OpExtend
		for _, other := range []string{"a", "b", "c"} { // seldom met by chance
			if _, _, forced := p.model.Forced.Get(key+other, time.Now()); forced && p.rand.IntN(2) == 0 {
				cmd.Token = other
			}
		}
		cmd.Fence = p.pick(0, 1, now, now+1000, 1<<46+1, 1<<52+1, largest-2, largest-1, largest)
		cmd.RefillUntil = p.pick(0, now-1_000_000, now+1_000_000, now+60_000_000)
	default:
		if p.rand.IntN(3) == 0 {
			cmd.Former, cmd.Token = token, string(rune('a'+p.rand.IntN(3)))+"'"
		}
		if cmd.Recall = p.rand.IntN(3) == 0; p.rand.IntN(4) == 0 {
			p.forgetResult(key)
		}
		slack := protocol.FenceSlack.Microseconds()
		if _, slot := protocol.SlotOf(key); slot > 0 || p.rand.IntN(3) == 0 {
			cmd.Recall, cmd.Slots = false, uint16(slot+1+p.rand.IntN(slotsTried-slot))
			cmd.Leads, cmd.Offered = cmd.Slots > 1 && p.rand.IntN(3) > 0, cmd.Slots > 1 && p.rand.IntN(3) == 0
		}
		cmd.Fence = p.pick(now, now-50, now+50, now-slack/2, now+slack/2, now-10*slack, now+10*slack, 0, -1, 1, largest, 1<<62)
	}
	return cmd
}

// store has a master remember a result, once in so many times in any case.
func (p *pair) store(data string, times int) *protocol.Store {
	now := time.Now().UnixMicro()
	result := protocol.Result{Data: data, Keep: time.Duration(p.pick(0, 1, 1)) * time.Minute, Fence: p.pick(1, now-1000, now, now+1000)}
	return &protocol.Store{Result: &result, Anyway: p.rand.IntN(times) == 0}
}

func (p *pair) pick(values ...int64) int64 { return values[p.rand.IntN(len(values))] }

// ttl is a short one, which ends within the test, or one that doesn't. Now and then it is none: PEXPIRE deletes the key at once then, as it
// does where the server is suspended within it for the whole TTL.
func (p *pair) ttl() time.Duration {
	switch p.rand.IntN(20) {
	case 0:
		return 0
	case 1, 2, 3, 4, 5, 6, 7, 8, 9:
		return time.Duration(1+p.rand.IntN(40)) * time.Millisecond
	}
	return time.Minute
}

// forgetFence does what a minute without a lock does.
func (p *pair) forgetFence(key string) {
	p.client.Del(context.Background(), companions(key).fence)
	if p.client.LTrim(context.Background(), key, 0, 0); p.holder(key) == "" {
		p.client.Del(context.Background(), key)
	}
	p.model.Fences.Delete(key)
	p.model.Beside.Delete(key)
}

// expireTime is PEXPIRETIME, which Redis has from 7.0 on.
const expireTime = `local now = redis.call('TIME')
return now[1] * 1000 + math.floor(now[2] / 1000) + redis.call('PTTL', KEYS[1])`

// left gives how long a key of the server lasts, from now.
func (p *pair) left(key string, now time.Time) time.Duration {
	return time.UnixMilli(p.client.Eval(context.Background(), expireTime, []string{key}).Val().(int64)).Sub(now)
}

// adopt takes over what the server has.
func (p *pair) adopt(key string) {
	ctx, now := context.Background(), time.Now()
	p.model.Leases.Delete(key)
	if token := p.holder(key); token != "" {
		p.model.Leases.Set(key, strings.TrimRight(token, "+"), now, p.left(key, now))
		p.model.Plain.Delete(key)
		if !strings.HasSuffix(token, "+") {
			p.model.Plain.Set(key, token, now, time.Hour)
		}
	}
	p.model.Fences.Delete(key)
	p.model.Beside.Delete(key)
	if fence, at := p.fence(key); at != "" {
		p.model.Fences.Set(key, fence, now, p.left(at, now))
		if at != key {
			p.model.Beside.Set(key, true, now, p.left(at, now))
		}
	}
	p.model.Results.Delete(key)
	if stored := p.client.HGetAll(ctx, key+":result").Val(); len(stored) > 0 {
		fence, _ := strconv.ParseInt(stored["fence"], 10, 64)
		p.model.Results.Set(key, protocol.Result{Data: stored["data"], Fence: fence}, now, p.left(key+":result", now))
	}
	for _, token := range tokens {
		p.model.Forced.Delete(key + token)
		forced := key + ":forced:" + token
		if by, err := p.client.Get(ctx, forced).Result(); err == nil {
			p.model.Forced.Set(key+token, by, now, p.left(forced, now))
		}
	}
	line, _ := protocol.SlotOf(key)
	p.model.Queues.Delete(line)
	if waiting := p.client.ZRangeWithScores(ctx, companions(key).queue, 0, -1).Val(); len(waiting) > 0 {
		q := &memory.Queue{}
		for _, z := range waiting {
			process := z.Member.(string)
			ends, _ := p.client.HGet(ctx, companions(key).leases, process).Int64()
			slots, _ := p.client.HGet(ctx, companions(key).leases, process+"/n").Int()
			q.Join(memory.Place{Process: process, Ticket: int64(z.Score), Ends: time.UnixMicro(ends), Slots: slots})
		}
		p.model.Queues.Set(line, q, now, p.left(companions(key).queue, now))
	}
	p.adoptSlots(line)
}

// compare wants the same reply from both, and the same fence stored.
func (p *pair) compare(model, real *protocol.Command, holder string) {
	want, got := model.Reply, real.Reply
	if got.Alone {
		p.seen["acquire alone"]++
	}
	if real.Alone {
		p.seen["release plain"]++
	}
	if got.Offer > 0 {
		p.seen["acquire offered another slot"]++
	}
	if real.Slots > 1 && got.Status == protocol.StatusGranted {
		p.seen["slot granted"]++
		if real.Offered {
			p.seen["slot granted as offered"]++
		}
	}
	if exact(got) != exact(want) || real.Alone != model.Alone || !sameAnswer(got.Answer, want.Answer) {
		p.t.Errorf("%+v, held by %q:\nserver %+v\nmodel  %+v", model, holder, got, want)
	}
	if off := (got.TTL - want.TTL).Abs(); off > 5*expirySlack {
		p.t.Errorf("%+v: the holder's lease lasts %v, want %v", model, got.TTL, want.TTL)
	}
	p.compareState(model)
	p.seen[operation(model, holder)]++
}

// exact is all of a reply that must be the same, with the fields that are added some day.
func exact(r protocol.Reply) protocol.Reply {
	r.TTL, r.Answer, r.Err = 0, nil, nil
	return r
}

// compareState wants the same of both after a command.
func (p *pair) compareState(model *protocol.Command) {
	stored, at := p.fence(model.Key)
	last, ends, known := p.model.Fences.Get(model.Key, p.now)
	if known && !time.Now().Before(ends.Add(-expirySlack)) {
		return // it took so long to ask the server that the server has forgotten the fence, and more
	}
	if _, _, beside := p.model.Beside.Get(model.Key, p.now); stored != last || known != (at != "") || known && beside != (at != model.Key) {
		p.t.Errorf("%+v: fence stored is %d in %q, want %d, beside the list: %t", model, stored, at, last, beside)
	}
	if stored == largest {
		p.seen["largest fence"]++
	}
	p.compareResults(model)
	p.compareQueues(model)
	p.compareSlots(model)
	p.compareMark(model)
}

func operation(cmd *protocol.Command, holder string) string {
	name := map[protocol.Op]string{protocol.OpAcquire: "acquire", protocol.OpExtend: "extend", protocol.OpRelease: "release", protocol.OpInspect: "inspect", protocol.OpRecall: "recall", protocol.OpStore: "store", protocol.OpForce: "force"}[cmd.Op]
	seen, inspected := cmd.Reply.Answer.(*protocol.Inspected)
	switch {
	case inspected && seen.Result != nil:
		return name + " result"
	case inspected && seen.Queue != "":
		return name + " queue"
	case inspected:
		return name
	case cmd.Op == protocol.OpAcquire && cmd.Reply.Status == protocol.StatusHeld && cmd.Reply.Holder == "":
		return name + " queued behind another"
	case cmd.Op == protocol.OpAcquire && cmd.Reply.Former == protocol.StatusReleased && cmd.Reply.Status == protocol.StatusGranted:
		return name + " passed"
	case cmd.Op == protocol.OpAcquire && holder == cmd.Token:
		return name + " again"
	case cmd.Op == protocol.OpExtend && cmd.Reply.Status == protocol.StatusGranted && holder == "":
		return name + " refilled"
	}
	return name + " " + map[protocol.Status]string{protocol.StatusGranted: "granted", protocol.StatusHeld: "held", protocol.StatusReleased: "released",
		protocol.StatusExpired: "expired", protocol.StatusNotOwner: "not owner", protocol.StatusDone: "done", protocol.StatusForced: "forced"}[cmd.Reply.Status]
}

// checkTTLs wants every key to end, and the leases when the model says.
func (p *pair) checkTTLs() {
	ctx := context.Background()
	for _, key := range p.client.Keys(ctx, "*").Val() {
		left := p.client.PTTL(ctx, key).Val()
		limit := time.Minute
		if key == "redlock:processes:{processes}" {
			limit = protocol.BeatMemory
		} else if strings.HasSuffix(key, "}") || isFence(key[strings.LastIndex(key, ":")+1:]) { // a lock, or a slot
			_, ends, _ := p.model.Leases.Get(key, always)
			if _, remembered, known := p.model.Fences.Get(key, time.Now()); known {
				ends = remembered
			}
			limit = time.Until(ends) + time.Second
		}
		if fence, err := p.client.Get(ctx, key).Int64(); err == nil { // beside a list
			limit = protocol.FenceLife(fence, time.Now().UnixMicro()) + time.Second
		}
		if left == -1 || left > max(limit, 0) { // -1: it never ends; -2: it just has
			p.t.Errorf("%s lives for %v, want at most %v", key, left, limit)
		}
	}
}
