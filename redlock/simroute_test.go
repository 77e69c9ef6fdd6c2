package redlock

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock/internal/admission"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
)

// route is a process's master: an address, behind which there is a server.
type route struct {
	address     int
	server      atomic.Pointer[simServer] // the one that was reached last
	process     *process
	random      *rand.Rand // of the stream
	ear         *rand.Rand // of Listen
	far         time.Duration
	loss        int     // per cent of the batches that break the connection
	there, back windows // in which nothing passes
	drops       windows // in which all that is sent is lost, and the connection with it
	seat        atomic.Pointer[admission.Seat]
	acquiring   atomic.Int64 // batches under way that have an acquire
}

func (l *route) String() string { return fmt.Sprint("sim://", l.address) }

func (l *route) Capabilities() protocol.Capabilities {
	return protocol.Capabilities{Shared: true, Several: true}
}

// reached is a start of a server, behind an address since its last move.
type reached struct {
	server *simServer
	epoch  int
	moves  int
}

// reaches tells what is behind the address now, and whether it answers.
func (l *route) reaches() (r reached, up bool) {
	r.server, r.moves = l.process.world.behind(l.address)
	r.epoch, up, _ = r.server.life()
	return r, up
}

// breaks is in how long a connection will break for what happens to the server and its address.
func (l *route) breaks(on reached) time.Duration {
	w, ends := l.process.world, time.Hour
	for _, down := range on.server.downs {
		if down.from > w.now() {
			ends = min(ends, down.from-w.now())
		}
	}
	for _, m := range w.moves {
		if m.address == l.address && m.at > w.now() {
			ends = min(ends, m.at-w.now())
		}
	}
	return ends
}

func (l *route) Close() error { return nil }

// Listen hears what the server publishes until the connection breaks. Some messages come late, twice
// or never.
func (l *route) Listen(ctx context.Context, process string, patience time.Duration, ready func(), message func(protocol.WakeUp)) error {
	w := l.process.world
	ctx, end := context.WithCancel(ctx)
	defer end()
	on, up := l.reaches()
	if l.process.dead() || !l.pass(ctx, l.delay(l.ear), l.there, on.server.hangs, l.process.pauses) || !up {
		return errDown
	}
	if l.process.noPubSub {
		return protocol.Mark(errors.New("NOPERM"), protocol.ErrRefused)
	}
	memory := on.server.at(on.epoch)
	if memory == nil {
		return protocol.ErrBroken
	}
	ends := l.breaks(on)
	if !l.process.halfOpen {
		ends = min(ends, l.process.dies-w.now())
	}
	if l.loss > 0 && w.now() < w.faults.to { // it breaks at some time
		ends = min(ends, upTo(l.ear, w.ttl))
	}
	timer := time.AfterFunc(ends, end)
	defer timer.Stop()
	defer func() {
		if l.process.halfOpen && l.process.dead() { // the server believes that it still listens
			memory.Subscribe(process, func(protocol.WakeUp) {})
		}
	}()
	return memory.Listen(ctx, process, patience, func() {
		if l.process.dead() {
			return
		}
		ready()
	}, func(wake protocol.WakeUp) {
		if on.server.mute {
			return
		}
		if change := w.mutant.hear; change != nil && !change(l, wake) {
			return
		}
		copies := 1
		if w.now() < w.faults.to && chance(l.ear, l.loss) {
			copies = l.ear.IntN(3)
		}
		for range copies {
			delay := l.delay(l.ear)
			if copies > 1 {
				delay += upTo(l.ear, w.late)
			}
			go func() {
				if l.pass(context.Background(), delay, l.back, l.process.pauses) && !l.process.dead() {
					message(wake)
				}
			}()
		}
	})
}

// delay is how long a message travels: mostly as long as the way is, at times much longer.
func (l *route) delay(r *rand.Rand) time.Duration {
	if w := l.process.world; chance(r, 5) && w.now() < w.faults.to && !w.quiet {
		return upTo(r, 4*w.timeout)
	}
	return l.far/2 + upTo(r, l.far)
}

// arrival is when a message comes that would come at this time, but is held up in these windows.
func arrival(at time.Duration, held ...windows) time.Duration {
	for before := time.Duration(-1); before != at; {
		before = at
		for _, ws := range held {
			at = ws.end(at)
		}
	}
	return at
}

// pass waits for a message that travels for so long, and is held up in these windows. It is false
// if the context ends meanwhile.
func (l *route) pass(ctx context.Context, d time.Duration, held ...windows) bool {
	until := arrival(l.process.world.now()+d, held...)
	if until == l.process.world.now() {
		return true
	}
	timer := time.NewTimer(until - l.process.world.now())
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
