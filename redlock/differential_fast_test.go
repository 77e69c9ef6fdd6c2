package redlock

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
)

// isFence says whether an entry of a lock's list is its fence.
func isFence(entry string) bool {
	_, err := strconv.ParseInt(entry, 10, 64)
	return err == nil
}

// wellFormed says whether a list is of a token, of a token and its fence, or of a fence.
func wellFormed(list []string) bool {
	if len(list) > 0 && !isFence(list[0]) {
		list = list[1:]
	}
	return len(list) == 0 || len(list) == 1 && isFence(list[0])
}

// holder gives the token in a lock's list, with its marks, or nothing.
func (p *pair) holder(key string) string {
	if token := p.client.LIndex(context.Background(), key, 0).Val(); !isFence(token) {
		return token
	}
	return ""
}

// fence gives the fence that the server remembers for a key, and the key of the server at which it does.
func (p *pair) fence(key string) (fence int64, at string) {
	ctx := context.Background()
	if last := p.client.LIndex(ctx, key, -1).Val(); isFence(last) {
		fence, _ = strconv.ParseInt(last, 10, 64)
		return fence, key
	}
	fence, err := p.client.Get(ctx, companions(key).fence).Int64()
	if err != nil {
		return 0, ""
	}
	return fence, companions(key).fence
}

// together has several keys acquired, their leases renewed, or the keys freed with results, in one command of the server, and one after the
// other in the model.
func (p *pair) together() {
	var cmds []*protocol.Command
	op, name, recall := protocol.OpAcquire, "fast acquire ", p.rand.IntN(2) == 0
	switch p.rand.IntN(3) {
	case 0:
		op, name = protocol.OpExtend, "fast extend "
	case 1:
		op, name = protocol.OpRelease, "fast release "
	}
	ttl := p.ttl()
	if p.rand.IntN(3) == 0 {
		ttl = protocol.FenceTTL + time.Duration(p.pick(-1, 0, 40, 99, 100))*time.Millisecond
	}
	for range 2 + p.rand.IntN(4) {
		now, slack, key := time.Now().UnixMicro(), protocol.FenceSlack.Microseconds(), p.key()
		key, _ = protocol.SlotOf(key) // nobody asks for another slot like this
		if slices.ContainsFunc(cmds, func(cmd *protocol.Command) bool { return cmd.Key == key }) {
			continue
		}
		switch op {
		case protocol.OpExtend:
			cmds = append(cmds, p.fastExtend(key, ttl))
			continue
		case protocol.OpRelease:
			cmds = append(cmds, p.fastRelease(key, ttl))
			continue
		}
		if p.rand.IntN(2) == 0 { // free, and mostly with a fence
			p.client.Del(context.Background(), companions(key).queue, companions(key).leases)
			if holder := p.holder(key); holder != "" {
				p.real.Do([]*protocol.Command{{Op: protocol.OpRelease, Key: key, Token: strings.TrimRight(holder, "+"), TTL: time.Minute, Process: processes[0]}})
			}
			p.adopt(key)
		}
		cmds = append(cmds, &protocol.Command{Op: protocol.OpAcquire, Key: key, Token: string(rune('a' + p.rand.IntN(3))), TTL: ttl, Fast: true, Recall: recall,
			Fence: p.pick(now, now, now, now+50, now-slack/2, now+slack/2, now-10*slack, now+10*slack, largest)})
	}
	if len(cmds) < 2 {
		return
	}
	models := make([]protocol.Command, len(cmds))
	for i, cmd := range cmds {
		models[i] = *cmd
	}
	before := time.Now()
	p.direct.Do(cmds)
	after := time.Now()
	for i, real := range cmds {
		cmd := &models[i]
		if real.Reply.Err != nil && !errors.Is(real.Reply.Err, protocol.ErrNotExecuted) {
			p.t.Errorf("%+v: %v", cmd, real.Reply.Err)
			return
		}
		p.now = after
		if real.Reply.Time != 0 {
			p.now = time.UnixMicro(real.Reply.Time)
		}
		if p.endsNear(cmd.Key, before, after) || after.Sub(before) > expirySlack {
			p.ambiguous++
			p.adopt(cmd.Key)
			continue
		}
		p.model.Do([]*protocol.Command{cmd})
		if got, want := real.Reply, cmd.Reply; exact(got) != exact(want) || !errors.Is(got.Err, want.Err) || !sameAnswer(got.Answer, want.Answer) || (got.TTL-want.TTL).Abs() > 5*expirySlack {
			p.t.Errorf("%+v:\nserver %+v\nmodel  %+v", cmd, real.Reply, cmd.Reply)
		}
		switch {
		case cmd.Reply.Err != nil:
			p.seen[name+"undecided"]++
		case cmd.Reply.Status == protocol.StatusDone:
			p.seen[name+"done"]++
		default:
			p.seen[name+"granted"]++
		}
		p.compareState(cmd)
	}
}

// fastExtend mostly renews the lock of the one who has it, with the fence that it has.
func (p *pair) fastExtend(key string, ttl time.Duration) *protocol.Command {
	cmd := &protocol.Command{Op: protocol.OpExtend, Key: key, Token: "a", TTL: ttl, Fast: true, Fence: p.pick(1, time.Now().UnixMicro(), largest)}
	if holder, _, held := p.model.Leases.Get(key, time.Now()); held && p.rand.IntN(8) > 0 {
		cmd.Token = holder
	}
	if fence, _, known := p.model.Fences.Get(key, time.Now()); known && p.rand.IntN(8) > 0 {
		cmd.Fence = fence
	}
	return cmd
}

// fastRelease is mostly one of who has the key.
func (p *pair) fastRelease(key string, ttl time.Duration) *protocol.Command {
	if p.rand.IntN(2) == 0 {
		p.forgetResult(key)
	}
	cmd := &protocol.Command{Op: protocol.OpRelease, Key: key, Token: "a", TTL: ttl, Fast: true, Ask: p.store("kept", 1000)}
	if holder, _, held := p.model.Leases.Get(key, time.Now()); held && p.rand.IntN(8) > 0 {
		cmd.Token = holder
	}
	return cmd
}
