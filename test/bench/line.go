package main

import (
	"bufio"
	"encoding/json"
	"io"
	"net"
	"os"
	"strings"
	"time"
)

// The delay line is a process of its own, so that its CPU time is in nobody's figures: a forwarder that
// lets each chunk arrive half a round trip after it was sent, without delaying the next.

const lineChild = "delay line"

type delayLine struct {
	*process
	addrs []string // that lead to the masters
}

func startLine(trip time.Duration, masters []string) (*delayLine, error) {
	p, err := startProcess(lineChild, masters, "-trip", trip.String())
	if err != nil {
		return nil, err
	}
	l := &delayLine{process: p}
	return l, p.out.Decode(&l.addrs)
}

// trip is a round trip to a master through the line, as PINGs show it, the delay of timers and of a loaded machine included: what the
// times of a cell are divided by.
func (l *delayLine) trip() (time.Duration, error) {
	conn, err := net.Dial("tcp", l.addrs[0])
	if err != nil {
		return 0, err
	}
	defer func() { _ = conn.Close() }()
	in := bufio.NewReader(conn)
	var trips []time.Duration
	for range 7 {
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

// runLine is the whole life of a line's process: the addresses go out, and it ends with its input.
func runLine(masters string, trip time.Duration) error {
	var addrs []string
	for master := range strings.SplitSeq(masters, ",") {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return err
		}
		addrs = append(addrs, listener.Addr().String())
		go func() {
			for {
				client, err := listener.Accept()
				if err != nil {
					return
				}
				server, err := net.Dial("tcp", master)
				if err != nil {
					_ = client.Close()
					continue
				}
				go forward(server, client, trip/2)
				go forward(client, server, trip/2)
			}
		}()
	}
	if err := json.NewEncoder(os.Stdout).Encode(addrs); err != nil {
		return err
	}
	_, err := io.Copy(io.Discard, os.Stdin)
	return err
}

type chunk struct {
	data []byte
	due  time.Time
}

func forward(to, from net.Conn, delay time.Duration) {
	queue := make(chan chunk, 1<<14)
	go func() {
		defer func() { _ = to.Close() }()
		for c := range queue {
			time.Sleep(time.Until(c.due))
			if _, err := to.Write(c.data); err != nil {
				_ = from.Close() // and the queue ends
			}
		}
	}()
	defer close(queue)
	for {
		buffer := make([]byte, 16<<10)
		n, err := from.Read(buffer)
		if n > 0 {
			queue <- chunk{buffer[:n], time.Now().Add(delay)}
		}
		if err != nil {
			return
		}
	}
}
