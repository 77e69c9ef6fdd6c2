package middleware

import (
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"time"
)

// firstRead is the room for the first bytes of a body. It is doubled as more arrive: a body that is merely declared takes no
// memory.
const firstRead = 1 << 10

// reading is how a body is read into memory.
type reading int

const (
	whole   reading = iota // before the lock is taken: it waits for room, and for bytes
	tried                  // in a dry run: it takes room if some is free, and leaves the rest to the next reader
	inSpare                // while the request waits for its lock: the same, in room that no key needs
)

var errFull = errors.New("longer than may be read")

// bodyBytes reads the body of a request, which can then be read again.
func bodyBytes(r *http.Request) ([]byte, error) {
	if r.Body == nil || r.Body == http.NoBody {
		return nil, nil
	}
	b, ok := r.Body.(*body)
	if !ok || !b.untouched() { // a key is derived outside of Rule.Serve
		b = newBody(nil, r)
		b.enter(byDefault(Rule{BodyBudget: NewBudget(DefaultMaxBody)}))
	}
	if !b.filled {
		b.filled = true
		b.err = b.fill()
	}
	if b.err == nil && int64(len(b.raw)) > b.rule.MaxBody { // the rule around this one allows more
		return nil, errBodyTooLarge
	}
	return b.raw, b.err
}

// fill reads the body within max_body, the budget and the deadline. In a dry run the handler reads the rest, whatever the
// error.
func (b *body) fill() error {
	if max(b.request.ContentLength, int64(len(b.raw))) > b.rule.MaxBody {
		return errBodyTooLarge
	}
	ctx, cancel := context.WithTimeout(b.request.Context(), b.rule.BodyTimeout)
	defer cancel()
	how := whole
	if b.rule.DryRun {
		how = tried
	}
	err := readError(ctx, b.read(ctx, how))
	b.keep()
	if err != nil && !errors.Is(err, errBodyTooLarge) && len(b.raw) > 0 && !b.rule.DryRun { // the rest will not arrive
		b.drop()
	}
	return err
}

// readAhead reads the body while its request waits, until ctx ends: with HTTP/1 the server notices that a client has left only
// after the end of the body. The handler reads on where this stops. A body above max_body is left alone, and so is one for
// which the client waits to be asked (Expect).
func (b *body) readAhead(ctx context.Context) {
	duplex, ok := unwrapTo[interface{ EnableFullDuplex() error }](b.writer)
	r := b.request
	if b.filled || !ok || r.ProtoMajor != 1 || r.ContentLength > b.rule.MaxBody || r.Header.Get("Expect") != "" {
		return
	}
	_ = b.read(ctx, inSpare) // the handler will meet the same error
	if p, ok := b.source.(*patient); ok && p.pending != nil {
		_ = duplex.EnableFullDuplex() // otherwise the server waits for this read before it answers
	}
	b.keep()
}

// readError returns the error for which a request is refused, given what went wrong.
func readError(ctx context.Context, err error) error {
	var tooLarge *http.MaxBytesError
	switch {
	case err == nil:
		return nil
	case errors.Is(err, errFull), errors.As(err, &tooLarge):
		return errBodyTooLarge
	case errors.Is(err, os.ErrDeadlineExceeded): // after which the server cancels the request's context, too
		return errBodyTimeout
	case errors.Is(ctx.Err(), context.Canceled): // the client has left
		return ctx.Err()
	case errors.Is(err, errBodyBudget):
		return errBodyBudget
	case ctx.Err() != nil:
		return errBodyTimeout
	}
	return errBodyBroken
}

// read reads to the end, or until the body is longer than max_body.
func (b *body) read(ctx context.Context, how reading) error {
	interruptible := b.prepare(how)
	for int64(len(b.raw)) <= b.rule.MaxBody {
		err := b.grow(ctx, how)
		if err == nil && interruptible {
			err = b.interrupted(ctx)
		} else if err == nil {
			err = b.readRoom(ctx)
		}
		if err == io.EOF {
			b.noteEnd(err)
			return nil
		}
		if err != nil {
			return err
		}
	}
	return errFull
}

// grow takes room and memory for more if all that it has is filled. The length that the client declares is that on the wire: a
// decoder in front may make more of it.
func (b *body) grow(ctx context.Context, how reading) error {
	if len(b.raw) < cap(b.raw) {
		return nil
	}
	read, most := int64(len(b.raw)), b.rule.MaxBody
	if length := b.request.ContentLength; length >= read {
		most = min(most, length)
	}
	room := min(max(firstRead, 2*read), most)
	if !b.take(ctx, room-b.held(), how) {
		return errBodyBudget
	}
	b.raw = append(make([]byte, 0, room+1), b.raw...) // the last byte shows whether more comes
	return nil
}

// take takes more room. It waits for it only if the body is read as a whole.
func (b *body) take(ctx context.Context, more int64, how reading) bool {
	p := b.portion()
	switch {
	case more <= 0:
		return true
	case how == inSpare:
		return p.trySpare(more)
	case how == tried:
		ended, cancel := context.WithCancel(ctx)
		cancel()
		ctx = ended
	}
	return p.take(ctx, more)
}

// readRoom reads until its room is full.
func (b *body) readRoom(ctx context.Context) error {
	for len(b.raw) < cap(b.raw) {
		n, err := readUntil(ctx, b.source, b.raw[len(b.raw):cap(b.raw)])
		b.raw = b.raw[:len(b.raw)+n]
		if err != nil {
			return err
		}
	}
	return nil
}

// interrupted is readRoom until ctx ends. It sets the deadline of the connection only then: servers set their own with each
// read, and after a missed deadline the connection is useless.
func (b *body) interrupted(ctx context.Context) error {
	connection := http.NewResponseController(b.writer)
	done := make(chan struct{})
	unset := context.AfterFunc(ctx, func() {
		defer close(done)
		_ = connection.SetReadDeadline(time.Now()) // not supported by all
	})
	err := b.readRoom(ctx)
	if !unset() {
		<-done
		if err == nil || err == io.EOF { // just in time: the connection remains usable
			_ = connection.SetReadDeadline(time.Time{})
		}
	}
	return err
}

// prepare reports whether the deadline of the connection may interrupt reads, which is so only before the lock is taken. If it
// may not, or can't because a writer such as that of http.TimeoutHandler hides it, reads can be left to the next reader.
func (b *body) prepare(how reading) (interruptible bool) {
	_, bounded := unwrapTo[interface{ SetReadDeadline(time.Time) error }](b.writer)
	if _, ok := b.source.(*patient); !ok && b.writer != nil && (how != whole || !bounded) {
		b.source = &patient{source: b.source, buffer: make([]byte, firstRead)}
	}
	return how == whole && b.writer != nil
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

// unwrapTo finds an interface of a writer, or of one that it wraps.
func unwrapTo[T any](w http.ResponseWriter) (found T, ok bool) {
	for w != nil {
		if found, ok = w.(T); ok {
			return found, true
		}
		wrapper, wraps := w.(interface{ Unwrap() http.ResponseWriter })
		if !wraps {
			break
		}
		w = wrapper.Unwrap()
	}
	return found, false
}

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
