package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"time"
)

// network is what lies between the clients and the masters. It is made by a delay line: a process of
// its own, so that its CPU time is in nobody's figures.
type network struct {
	Trips []time.Duration // the round trip to each master
	Loss  float64         // the share of the packets that are lost on their way, in each direction
	Stall time.Duration   // for so long nothing arrives,
	Every time.Duration   // once in this time,
	Stuck int             // from and to so many of the masters, all at once
}

func (n network) none() bool { return len(n.Trips) == 0 }

// near is the round trip to the quorum of the nearest masters.
func (n network) near() time.Duration {
	return slices.Sorted(slices.Values(n.Trips))[len(n.Trips)/2]
}

// evenly is a network with the same way to all masters.
func evenly(masters int, trip time.Duration) network {
	return network{Trips: slices.Repeat([]time.Duration{trip}, masters)}
}

const lineChild = "delay line"

// delayLine is what a network looks like from outside.
type delayLine struct {
	*process
	network network
	addrs   []string // that lead to the masters
	probes  []net.Conn
}

func startLine(n network, masters []string) (*delayLine, error) {
	p, err := startProcess(lineChild, masters, "")
	if err != nil {
		return nil, err
	}
	l := &delayLine{process: p, network: n}
	if err = p.in.Encode(n); err == nil {
		err = p.out.Decode(&l.addrs)
	}
	for _, addr := range l.addrs {
		conn, dialErr := net.Dial("tcp", addr)
		if err = errors.Join(err, dialErr); err == nil {
			l.probes = append(l.probes, conn)
		}
	}
	return l, err
}

func (l *delayLine) stop() error {
	for _, conn := range l.probes {
		_ = conn.Close()
	}
	return l.process.stop()
}

// lateness is by how much the line's chunks were late, since it was asked last.
func (l *delayLine) lateness() (d latencies, err error) {
	if err = l.in.Encode(struct{}{}); err == nil {
		err = l.out.Decode(&d)
	}
	return d, err
}

// trip is the round trip to a quorum of the nearest masters, as a PING shows it on a connection of
// its own: what our figures are divided by.
func (l *delayLine) trip() (time.Duration, error) {
	times := 25
	if l.network.near() >= 20*time.Millisecond {
		times = 5
	}
	trips, errs := make([]time.Duration, len(l.probes)), make([]error, len(l.probes))
	done := make(chan struct{})
	near := l.network.near()
	asked := 0
	for i, conn := range l.probes {
		trips[i] = l.network.Trips[i]
		if trips[i] > near {
			continue
		}
		asked++
		go func() {
			trips[i], errs[i] = ping(conn, times)
			done <- struct{}{}
		}()
	}
	for range asked {
		<-done
	}
	slices.Sort(trips)
	return trips[len(trips)/2], errors.Join(errs...)
}

// ping is the median of some round trips. Those that a loss or a stall made long are in the upper half.
func ping(conn net.Conn, times int) (time.Duration, error) {
	in := bufio.NewReader(conn)
	var trips []time.Duration
	for range times {
		start := time.Now()
		if _, err := conn.Write([]byte("PING\r\n")); err != nil {
			return 0, err
		}
		if _, err := in.ReadString('\n'); err != nil {
			return 0, err
		}
		trips = append(trips, time.Since(start))
	}
	return newLatencies(trips).P50, nil
}

// runLine is the whole life of a line's process: the network comes in, the addresses go out, and then
// the lateness, as often as somebody asks.
func runLine(masters string) error {
	in, out := json.NewDecoder(os.Stdin), json.NewEncoder(os.Stdout)
	var n network
	if err := in.Decode(&n); err != nil {
		return err
	}
	l, addrs, err := newLine(n, strings.Split(masters, ","))
	if err != nil {
		return fmt.Errorf("delay line: %w", err)
	}
	failed := make(chan error, 1)
	go func() { failed <- l.run() }()
	if err := out.Encode(addrs); err != nil {
		return err
	}
	for {
		var asked struct{}
		if err := in.Decode(&asked); errors.Is(err, io.EOF) {
			select {
			case err = <-failed:
				return err
			default:
				return nil
			}
		} else if err != nil {
			return err
		}
		if err := out.Encode(newLatencies(l.takeLate())); err != nil {
			return err
		}
	}
}
