package middleware

import (
	"context"
	"io"
	"net/http"
	"time"
)

// bound makes the reads of the body end with ctx. The deadline of the connection is not set before: servers set
// their own with each read, and after it the connection is of no use.
func (b *body) bound(ctx context.Context) (stop func(finished bool)) {
	if b.writer == nil {
		return func(bool) {}
	}
	if _, ok := b.source.(*patient); !ok && (b.rule.DryRun || !hasReadDeadline(b.writer)) {
		b.source = &patient{source: b.source, buffer: make([]byte, firstRead)}
	}
	if b.rule.DryRun {
		return func(bool) {}
	}
	connection := http.NewResponseController(b.writer)
	interrupted := make(chan struct{})
	unset := context.AfterFunc(ctx, func() {
		defer close(interrupted)
		_ = connection.SetReadDeadline(time.Now()) // not supported by all
	})
	return func(finished bool) {
		if unset() {
			return
		}
		<-interrupted
		if finished { // just in time: the connection can be used on
			_ = connection.SetReadDeadline(time.Time{})
		}
	}
}

// hasReadDeadline says whether the reads of the body can be ended through this writer: not behind
// http.TimeoutHandler, for example.
func hasReadDeadline(w http.ResponseWriter) bool {
	for {
		switch t := w.(type) {
		case interface{ SetReadDeadline(time.Time) error }:
			return true
		case interface{ Unwrap() http.ResponseWriter }:
			w = t.Unwrap()
		default:
			return false
		}
	}
}

// readUntil reads until ctx ends.
func readUntil(ctx context.Context, source io.Reader, p []byte) (int, error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	if patient, ok := source.(*patient); ok {
		return patient.readUntil(ctx, p)
	}
	return source.Read(p)
}

// patient reads from a source whose reads can't be ended, or must not be because the handler is to read
// on. Who has no more time leaves the read under way to who reads next; if nobody does, it ends when the
// server closes the body, or the client the connection.
type patient struct {
	source   io.Reader
	buffer   []byte
	underWay chan struct{} // closed when the read is done; nil for none

	rest []byte // that was read, and not taken yet
	err  error  // behind it
}

func (p *patient) readUntil(ctx context.Context, into []byte) (int, error) {
	if p.underWay == nil && len(p.rest) == 0 && p.err == nil {
		p.underWay = make(chan struct{})
		go p.read(p.underWay)
	}
	if p.underWay != nil { // until then rest is not ours
		select {
		case <-p.underWay:
			p.underWay = nil
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
		if recover() != nil { // as the server would do in the handler's goroutine
			p.err = errBodyBroken
		}
	}()
	n, err := p.source.Read(p.buffer)
	p.rest, p.err = p.buffer[:n], err
}

// Read is for the handler, which has time.
func (p *patient) Read(into []byte) (int, error) {
	if p.underWay == nil && len(p.rest) == 0 && p.err == nil {
		return p.source.Read(into)
	}
	return p.readUntil(context.Background(), into)
}
