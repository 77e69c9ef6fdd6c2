package main

import (
	"bytes"
	"io"
	"math/rand/v2"
	"net"
	"testing"
	"time"
)

// through gives both ends of a connection through a delay line.
func through(t *testing.T, n network) (client, server net.Conn, l *line) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	l, addrs, err := newLine(n, []string{listener.Addr().String()})
	if err != nil {
		t.Skip(err)
	}
	go func() { _ = l.run() }()
	if client, err = net.Dial("tcp", addrs[0]); err != nil {
		t.Fatal(err)
	}
	if server, err = listener.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close(); server.Close() })
	return client, server, l
}

// TestLineDelays: what goes there and back takes at least the round trip, a connection one more, and
// what is sent meanwhile doesn't wait for what was sent before.
func TestLineDelays(t *testing.T) {
	const trip = 30 * time.Millisecond
	start := time.Now()
	client, server, l := through(t, evenly(1, trip))
	go func() { _, _ = io.Copy(server, server) }()
	const pings = 50
	go func() {
		for range pings {
			_, _ = client.Write([]byte("ping"))
			time.Sleep(time.Millisecond)
		}
	}()
	reply := make([]byte, 4)
	for i := range pings {
		if _, err := io.ReadFull(client, reply); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(start); i == 0 && took < 2*trip {
			t.Errorf("the handshake and an answer took %v, less than two round trips of %v", took, trip)
		}
	}
	if took := time.Since(start); took > pings*trip/2 {
		t.Errorf("%d messages took %v: they wait for each other", pings, took)
	}
	for _, late := range l.takeLate() {
		if late < 0 {
			t.Errorf("a chunk was early by %v", -late)
		}
	}
}

// TestLineKeepsTheStream: bytes arrive once and in order, with losses and stalls too, and then the end.
func TestLineKeepsTheStream(t *testing.T) {
	n := evenly(1, time.Millisecond)
	n.Loss, n.Stall, n.Every, n.Stuck = 0.01, 20*time.Millisecond, 100*time.Millisecond, 1
	client, server, _ := through(t, n)
	sent := make([]byte, 1<<20)
	for i := range sent {
		sent[i] = byte(rand.IntN(256))
	}
	go func() {
		for rest := sent; len(rest) > 0; {
			n := min(1+rand.IntN(20_000), len(rest))
			_, _ = client.Write(rest[:n])
			rest = rest[n:]
		}
		client.Close()
	}()
	received, err := io.ReadAll(server)
	if err != nil || !bytes.Equal(received, sent) {
		t.Errorf("%d bytes sent, %d received, equal: %v, %v", len(sent), len(received), bytes.Equal(received, sent), err)
	}
}

// TestPipeLoses: a lost chunk comes after the time-out of TCP, or as soon as what followed it has told of
// it, and holds up what followed; a stall holds up all until its end.
func TestPipeLoses(t *testing.T) {
	const trip = 20 * time.Millisecond
	start := time.Now()
	p := &pipe{way: way{trip: trip, loss: 1, start: start}}
	p.push([]byte("lost"), start)
	if got, want := p.queue[0].due.Sub(start), trip+minRTO+trip/2; got != want {
		t.Errorf("sent again alone it arrives after %v, want %v", got, want)
	}
	p.way.loss = 0
	p.push([]byte("follows"), start.Add(trip/4))
	if got, want := p.queue[0].due.Sub(start), trip/4+trip+trip/4+trip/2; got != want {
		t.Errorf("sent again after another it arrives after %v, want %v", got, want)
	}
	if p.pop(); p.broken {
		t.Error("what is behind a loss that has arrived counts as lost")
	}
	p = &pipe{way: way{trip: trip, stall: 300 * time.Millisecond, every: time.Second, start: start}}
	p.push([]byte("stalled"), start.Add(time.Second))
	if got, want := p.queue[0].due.Sub(start), 1300*time.Millisecond; got != want {
		t.Errorf("what is stalled arrives after %v, want %v", got, want)
	}
}
