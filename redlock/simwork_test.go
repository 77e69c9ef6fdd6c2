package redlock

import (
	"slices"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
)

// conserved is that the work goes on: a call that could take all that it wants does, or another one takes something of it.
const conserved = "no key is free while a call waits that could take all it wants"

// wanted is a call that has returned.
type wanted struct {
	process  *process
	keys     []string
	from, to time.Duration
}

// returns notes a call that returns, and judges for how long it was held up.
func (p *process) returns(keys []string, wait time.Duration, try bool, from time.Duration) {
	w := p.world
	if late := w.now() - from - wait; late > 3*time.Second {
		w.violated(unmoved, "process %d waited for %v longer than it wanted to", p.index, late)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if !try {
		w.calls = append(w.calls, wanted{p, slices.Clone(keys), from, w.now()})
	}
}

// judgeWork looks, where nothing goes wrong, for times at which all that a call waited for was free.
func (w *world) judgeWork() {
	const longest = time.Second // that a turn takes to pass on
	if w.slots > 1 {
		return // judgeSlots does
	}
	for _, c := range w.calls {
		free := c.from // since then
		for _, h := range w.held {
			if !slices.Contains(c.keys, h.key) || h.end() <= free {
				continue
			}
			if h.granted > c.to || h.granted > free+longest {
				break
			}
			free = h.end()
		}
		if c.to > free+longest {
			w.violated(conserved, "process %d waited for %v from %v to %v; all are free from %v on", c.process.index, c.keys, c.from, c.to, free)
		}
	}
}

// workMutants keep from others what they can't use.
var workMutants = []mutant{
	{
		name: "a call for several keys keeps its place for those that are free", breaks: conserved, quiet: true,
		shape: func(w *world) {
			w.pairs, w.several, w.keys = false, true, 3
			w.busy(3)
		},
		send: func(_ *route, cmd *protocol.Command) {
			if cmd.Op == protocol.OpRelease && cmd.Ticket > 0 {
				cmd.Queue = true
			}
		},
	},
}
