package main

import (
	"math/rand/v2"
	"time"
)

// pipe is one direction of a connection through the delay line: chunks, in order, each with the time
// at which it arrives.
type pipe struct {
	way    way
	opens  time.Time // when the handshake is over
	queue  []chunk
	broken bool // there are lost ones in the queue
	stuck  bool // the receiver takes no more for now
}

type chunk struct {
	data []byte // nil: the end
	due  time.Time
	lost bool // it is sent again
	late bool // a fault of the network held it up, not we
}

// way is the network between a client and one master.
type way struct {
	trip         time.Duration
	loss         float64
	stall, every time.Duration
	start        time.Time
}

func (n network) way(master int, start time.Time) way {
	w := way{trip: n.Trips[master], loss: n.Loss, start: start}
	if master < n.Stuck {
		w.stall, w.every = n.Stall, n.Every
	}
	return w
}

const (
	segment = 1448                   // bytes in a packet
	minRTO  = 200 * time.Millisecond // Linux's TCP_RTO_MIN
)

// push takes what the sender has sent now. A chunk of which a packet is lost arrives when TCP has sent
// it again, and holds up all behind it: a stream has no gaps. TCP learns of a loss a round trip after
// it has sent something that did arrive, and waits a quarter more (RFC 8985); where nothing follows,
// its time-out does it, a round trip and 200 ms. What is sent again arrives.
func (p *pipe) push(data []byte, now time.Time) {
	if now.Before(p.opens) {
		now = p.opens
	}
	c := chunk{data: data, due: now.Add(p.way.trip / 2)}
	noticed := now.Add(p.way.trip + p.way.trip/4)
	resent := noticed.Add(p.way.trip / 2)
	if p.broken {
		c.late = true
		for i := range p.queue {
			if p.queue[i].lost && p.queue[i].due.After(resent) {
				p.queue[i].due = resent
			}
		}
	}
	packets := (len(data) + segment - 1) / segment
	for i := range packets {
		if p.way.loss == 0 || rand.Float64() >= p.way.loss {
			continue
		}
		c.lost, c.late, p.broken = true, true, true
		if i == packets-1 {
			c.due = now.Add(p.way.trip + minRTO + p.way.trip/2)
		} else {
			c.due = resent
		}
	}
	if p.way.stall > 0 {
		if into := c.due.Sub(p.way.start) % p.way.every; into < p.way.stall {
			c.due, c.late = c.due.Add(p.way.stall-into), true
		}
	}
	p.queue = append(p.queue, c)
}

// pop removes the first chunk.
func (p *pipe) pop() {
	p.queue = p.queue[:copy(p.queue, p.queue[1:])]
	p.broken = false
	for _, c := range p.queue {
		p.broken = p.broken || c.lost
	}
}
