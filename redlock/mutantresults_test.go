package redlock

import (
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock/internal/memory"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
)

// resultMutants are about results.
var resultMutants = []mutant{
	{
		name: "acquires ignore results", breaks: onceOnly,
		send: func(_ *route, cmd *protocol.Command) { cmd.Recall = false },
	},
	{
		name: "the spellings of a key share a result", breaks: onceOnly,
		shape: func(w *world) { w.spelled = true },
		send:  func(_ *route, cmd *protocol.Command) { cmd.Given = "" },
	},
	{
		name: "a key is freed before its result is stored", breaks: onceOnly,
		serve: func(m *memory.Master, cmd *protocol.Command) bool {
			if cmd.Op == protocol.OpRelease && cmd.Ask != nil { // and the server has crashed in between
				released := *cmd
				released.Ask = nil
				m.Do([]*protocol.Command{&released})
				cmd.Reply = released.Reply
				return true
			}
			return false
		},
	},
	{
		name: "a holder that has lost its lock leaves its result", breaks: onceOnly, from: 932,
		shape: func(w *world) { // many are lost
			w.busy(4)
			for _, p := range w.processes {
				p.pauses = w.windows(4, w.ttl)
			}
		},
		send: func(l *route, cmd *protocol.Command) {
			w := l.process.world
			w.mu.Lock()
			defer w.mu.Unlock()
			if h := w.tokens[cmd.Token]; cmd.Op == protocol.OpRelease && h != nil && h.unlocked == 0 && strings.HasPrefix(h.key, "job") {
				cmd.Ask = &protocol.Store{Result: &protocol.Result{Data: strconv.Itoa(h.order), Fence: int64(h.fence), Keep: never}, Anyway: true}
			}
		},
	},
	{
		name: "a result is stored before the work is done", breaks: onceOnly,
		serve: func(m *memory.Master, cmd *protocol.Command) bool {
			m.Do([]*protocol.Command{cmd})
			if cmd.Op == protocol.OpAcquire && cmd.Recall && cmd.Reply.Status == protocol.StatusGranted {
				m.Results.Set(cmd.Key, protocol.Result{Data: "begun", Fence: cmd.Reply.Fence}, m.Clock(), never)
			}
			return true
		},
	},
	{
		name: "a result that one master remembers is returned as it is", breaks: onceOnly,
		send: func(l *route, cmd *protocol.Command) {
			if l.address > 0 && cmd.Op == protocol.OpRelease {
				cmd.Ask = nil
			}
		},
	},
	{
		name: "a fast acquire ignores results", breaks: onceOnly,
		serve: func(_ *memory.Master, cmd *protocol.Command) bool {
			if cmd.Fast && cmd.Op == protocol.OpAcquire {
				cmd.Recall, cmd.Fast = false, false
			}
			return false
		},
	},
	{
		name: "a fast release loses the result", breaks: onceOnly,
		serve: func(_ *memory.Master, cmd *protocol.Command) bool {
			if cmd.Fast && cmd.Op == protocol.OpRelease {
				cmd.Ask = nil
			}
			return false
		},
	},
	{
		name: "a result that one master has brought is returned as it is", breaks: onceOnly,
		send: func(l *route, cmd *protocol.Command) {
			if l.address > 0 && cmd.Op == protocol.OpRelease {
				cmd.Ask = nil
			}
		},
		answer: func(l *route, cmd *protocol.Command) { // but a holder learns that no quorum remembers its result
			w := l.process.world
			w.mu.Lock()
			defer w.mu.Unlock()
			if l.address > 0 && cmd.Op == protocol.OpRelease && w.tokens[cmd.Token] != nil {
				cmd.Reply = protocol.Reply{Err: protocol.ErrBroken}
			}
		},
	},
	{
		name: "a store counts although another token has the key", breaks: onceOnly,
		shape: longResults,
		send: func(l *route, cmd *protocol.Command) { // it has on all masters but one
			if l.address > 0 && cmd.Op == protocol.OpStore && !cmd.Ask.(*protocol.Store).Anyway {
				cmd.Token = "of another"
			}
		},
		answer: func(_ *route, cmd *protocol.Command) {
			if cmd.Op == protocol.OpStore && (cmd.Reply.Status == protocol.StatusNotOwner || cmd.Reply.Status == protocol.StatusExpired) {
				cmd.Reply.Status = protocol.StatusDone
			}
		},
	},
	{
		name: "a lock that is over is not stored for, and released as if it were not", breaks: onceOnly,
		shape: longEndings,
		unlock: func(k *Lock, result []byte, keep time.Duration) error {
			if k.over() == "" || k.ending() != "" {
				return k.UnlockWith(result, keep)
			}
			k.mu.Lock()
			k.until = k.until.Add(keep) // its release doesn't look
			k.mu.Unlock()
			return k.Unlock()
		},
	},
	{
		name: "what can't be read is taken for undone", breaks: onceOnly,
		shape: func(w *world) {
			longResults(w)
			w.passes = true
		},
		serve: func(_ *memory.Master, cmd *protocol.Command) bool { // so that each result that is met can't be
			if cmd.Op != protocol.OpRecall {
				return false
			}
			cmd.Reply.Err = protocol.Mark(errors.New("out of memory"), protocol.ErrRefused)
			return true
		},
	},
	{
		name: "a key is freed before its long result is stored", breaks: onceOnly,
		shape: longResults,
		serve: func(m *memory.Master, cmd *protocol.Command) bool {
			switch {
			case cmd.Op == protocol.OpStore && !cmd.Ask.(*protocol.Store).Anyway: // and the server has crashed in between
				released := *cmd
				released.Op, released.Ask = protocol.OpRelease, nil
				m.Do([]*protocol.Command{&released})
				cmd.Reply = protocol.Reply{Status: protocol.StatusDone}
			case cmd.Op == protocol.OpRelease:
				if m.Do([]*protocol.Command{cmd}); cmd.Reply.Status == protocol.StatusExpired {
					cmd.Reply.Status = protocol.StatusReleased
				}
			default:
				return false
			}
			return true
		},
	},
}

// longResults has all results take the lane for them, on lines that break often.
func longResults(w *world) {
	w.long = true
	w.busy(3)
	for _, p := range w.processes {
		p.pauses = w.windows(4, w.ttl)
		for _, l := range p.routes {
			l.loss = 10
		}
	}
}
