package middleware

import (
	"context"
	"io"
)

// patient reads from a source whose reads can't be interrupted, or must not be because the handler will read on. A reader that
// times out leaves its pending read to the next reader. If there is none, the read ends when the server closes the body, or the
// client the connection.
type patient struct {
	source  io.Reader
	buffer  []byte
	pending chan struct{} // closed when the read is done; nil for none

	rest []byte // that was read, and not taken yet
	err  error  // after rest
}

func (p *patient) readUntil(ctx context.Context, into []byte) (int, error) {
	if p.pending == nil && len(p.rest) == 0 && p.err == nil {
		p.pending = make(chan struct{})
		go p.read(p.pending)
	}
	if p.pending != nil { // until it is done, rest and err belong to its goroutine
		select {
		case <-p.pending:
			p.pending = nil
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
	n := copy(into, p.rest)
	if p.rest = p.rest[n:]; len(p.rest) > 0 {
		return n, nil
	}
	return n, p.err
}

func (p *patient) read(done chan struct{}) {
	defer close(done)
	defer func() {
		if recover() != nil { // in the handler's goroutine the server would recover from it
			p.err = errBodyBroken
		}
	}()
	n, err := p.source.Read(p.buffer)
	p.rest, p.err = p.buffer[:n], err
}

// Read is for the handler, which has time.
func (p *patient) Read(into []byte) (int, error) {
	if p.pending == nil && len(p.rest) == 0 && p.err == nil {
		return p.source.Read(into)
	}
	return p.readUntil(context.Background(), into)
}
