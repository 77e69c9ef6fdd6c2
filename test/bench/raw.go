package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"sync"
)

// raw is the floor: what the classic algorithm costs at least, with one connection for each master,
// whose commands concurrent callers share, and nothing around it: no time-outs, no validity, no
// renewal, no fencing. Its Lock doesn't wait.
type raw struct{ masters []*rawMaster }

func openRaw(addrs []string) (Contestant, error) { return newRaw(addrs) }

func newRaw(addrs []string) (*raw, error) {
	r := &raw{}
	for _, addr := range addrs {
		conn, err := net.Dial("tcp", addr)
		if err != nil {
			return nil, err
		}
		m := &rawMaster{conn: conn, in: bufio.NewReaderSize(conn, 64<<10), wake: make(chan struct{}, 1)}
		if _, err := conn.Write(appendCommand(nil, "SCRIPT", "LOAD", releaseScript)); err != nil {
			return nil, err
		}
		if _, err := readReply(m.in); err != nil {
			return nil, err
		}
		if _, err := io.ReadFull(m.in, make([]byte, len(releaseSHA)+2)); err != nil {
			return nil, err
		}
		go m.write()
		go m.read()
		r.masters = append(r.masters, m)
	}
	return r, nil
}

var ttlText = strconv.FormatInt(ttl.Milliseconds(), 10)

func (r *raw) Lock(_ context.Context, key string) (func() error, error) {
	token := newToken()
	b := newBallot(len(r.masters))
	for _, m := range r.masters {
		m.send(b, "SET", key, token, "NX", "PX", ttlText)
	}
	if !b.wait() {
		_ = r.release(key, token)
		return nil, errHeld
	}
	return func() error { return r.release(key, token) }, nil
}

func (r *raw) release(key, token string) error {
	b := newBallot(len(r.masters))
	for _, m := range r.masters {
		m.send(b, "EVALSHA", releaseSHA, "1", key, token)
	}
	if !b.wait() {
		return errNotOur
	}
	return nil
}

func (r *raw) Close() error {
	var errs []error
	for _, m := range r.masters {
		errs = append(errs, m.conn.Close())
		m.rouse()
	}
	return errors.Join(errs...)
}

type rawMaster struct {
	conn net.Conn
	in   *bufio.Reader
	wake chan struct{}

	mu   sync.Mutex
	out  []byte
	sent []*ballot // in the order of the commands
}

func (m *rawMaster) send(b *ballot, args ...string) {
	m.mu.Lock()
	m.out = appendCommand(m.out, args...)
	m.sent = append(m.sent, b)
	m.mu.Unlock()
	m.rouse()
}

func (m *rawMaster) rouse() {
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

func (m *rawMaster) write() {
	var batch []byte
	for range m.wake {
		m.mu.Lock()
		batch, m.out = m.out, batch[:0]
		m.mu.Unlock()
		if _, err := m.conn.Write(batch); err != nil {
			return
		}
	}
}

func (m *rawMaster) read() {
	var batch []*ballot
	next := 0
	for {
		yes, err := readReply(m.in)
		if err != nil {
			return // closed: the floors meet no failing master
		}
		if next == len(batch) {
			m.mu.Lock()
			batch, m.sent = m.sent, batch[:0]
			m.mu.Unlock()
			next = 0
		}
		batch[next].vote(yes)
		next++
	}
}

func appendCommand(to []byte, args ...string) []byte {
	to = append(to, '*')
	to = strconv.AppendInt(to, int64(len(args)), 10)
	for _, arg := range args {
		to = append(to, "\r\n$"...)
		to = strconv.AppendInt(to, int64(len(arg)), 10)
		to = append(to, "\r\n"...)
		to = append(to, arg...)
	}
	return append(to, "\r\n"...)
}

// readReply reads one line, and says whether it is a yes: "+OK" of SET, ":1" of the script. A bulk
// string's text is left to the caller.
func readReply(in *bufio.Reader) (bool, error) {
	line, err := in.ReadSlice('\n')
	switch {
	case err != nil:
		return false, err
	case line[0] == '-':
		return false, fmt.Errorf("redis says %s", line)
	}
	return line[0] == '+' || line[1] == '1', nil
}
