package middleware

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"sync"
	"time"
)

const (
	defaultMaxBody     = 1 << 20
	defaultBodyTimeout = 10 * time.Second

	// firstRead is for most bodies of unknown length, lest each take room for max_body.
	firstRead = 16 << 10
)

// body is a request's body on its way to the handler. Nothing is read before the handler does,
// unless a key or a signature needs it; then the handler reads the same bytes again.
type body struct {
	io.ReadCloser // the client's
	request       *http.Request
	writer        http.ResponseWriter // for the read deadline; nil for none
	rule          *Rule

	mu     sync.Mutex   // a proxy may still read while its handler returns
	replay bytes.Reader // what was read, for the handler
	ended  bool

	buffered bool
	raw      []byte
	large    *[]byte // which raw is in, or nil
	err      error
	budget   *Budget
	held     int64 // bytes of the budget
}

// wrapBody puts a body into the request, and gives the function that ends its claim on the budget.
func (rule *Rule) wrapBody(w http.ResponseWriter, r *http.Request) (release func()) {
	if !hasBody(r) {
		return func() {}
	}
	if b, ok := r.Body.(*body); ok && b.untouched() { // another rule's, around this one
		b.rule = rule
		if !b.buffered {
			b.budget = rule.budget()
		}
		return func() {}
	}
	b := &body{ReadCloser: r.Body, request: r, writer: w, rule: rule, budget: rule.budget()}
	r.Body = b
	return b.release
}

// release ends the claim on the budget, and on the memory.
func (b *body) release() {
	b.mu.Lock()
	b.ended, b.raw = true, nil
	b.replay.Reset(nil)
	b.recycle()
	b.mu.Unlock()
	b.giveBack(b.held)
}

// hasBody goes by the length, too: another handler may have put something around http.NoBody.
func hasBody(r *http.Request) bool {
	return r.Body != nil && r.Body != http.NoBody && r.ContentLength != 0
}

// untouched says whether a handler would read all of the bytes from which a key was made.
func (b *body) untouched() bool { return b.replay.Len() == len(b.raw) }

// bodyBytes reads the body of a request, and leaves it to be read again.
func bodyBytes(r *http.Request) ([]byte, error) {
	if !hasBody(r) {
		return nil, nil
	}
	b, ok := r.Body.(*body)
	if !ok { // a key is asked for outside of Rule.Serve
		b = &body{ReadCloser: r.Body, request: r, rule: &Rule{}, budget: NewBudget(defaultMaxBody)}
		r.Body = b
	}
	if !b.buffered {
		b.buffered = true
		b.err = b.buffer()
		b.replay.Reset(b.raw)
		stripFence(r.Trailer, b.rule.fenceHeader())
	}
	if b.err == nil && int64(len(b.raw)) > b.rule.maxBody() {
		return nil, errBodyTooLarge
	}
	return b.raw, b.err
}

// Read gives what was read before, and then the rest. The trailers come with its end.
func (b *body) Read(p []byte) (int, error) {
	b.mu.Lock()
	replay, ended := b.replay.Len() > 0, b.ended
	if replay {
		defer b.mu.Unlock()
		return b.replay.Read(p)
	}
	b.mu.Unlock()
	if ended {
		return 0, http.ErrBodyReadAfterClose
	}
	n, err := b.ReadCloser.Read(p)
	if err != nil {
		stripFence(b.request.Trailer, b.rule.fenceHeader())
	}
	return n, err
}

// buffer reads the body within max_body, the budget and the deadline.
func (b *body) buffer() error {
	most, length := b.rule.maxBody(), b.request.ContentLength
	if length > most {
		return errBodyTooLarge
	}
	ctx, cancel := context.WithTimeout(b.request.Context(), b.rule.bodyTimeout())
	defer cancel()
	room := length
	if length < 0 {
		room = most
	}
	if err := b.budget.take(ctx, room); err != nil {
		return because(ctx, errBodyBudget)
	}
	b.held = room
	if b.rule.DryRun { // it may take its time: after a deadline nobody could read the rest
		ctx = b.request.Context()
	}
	b.raw = make([]byte, 0, min(room, max(length, firstRead))+bytes.MinRead)
	err := b.read(ctx, most+1)
	b.giveBack(b.held - int64(cap(b.raw)))
	var tooLarge *http.MaxBytesError
	switch {
	case int64(len(b.raw)) > most, errors.As(err, &tooLarge):
		return errBodyTooLarge
	case err == nil:
		return nil
	case errors.Is(err, os.ErrDeadlineExceeded): // then the server cancels the request's context too
		return errBodyTimeout
	case ctx.Err() != nil:
		return because(ctx, errBodyTimeout)
	}
	return errBodyBroken
}

// because prefers, of the reasons why no body was had, that the client has left.
func because(ctx context.Context, err error) error {
	if errors.Is(ctx.Err(), context.Canceled) {
		return ctx.Err()
	}
	return err
}

// read reads up to most bytes, until ctx ends.
func (b *body) read(ctx context.Context, most int64) error {
	stop := b.interrupt(ctx)
	buffer := bytes.NewBuffer(b.raw)
	source := readerUntil{ctx, b.ReadCloser}
	n, err := buffer.ReadFrom(io.LimitReader(source, min(most, max(b.request.ContentLength+1, firstRead))))
	if err == nil && n < most && n == firstRead { // of unknown length, and longer than most are
		buffer = bytes.NewBuffer(append(b.largeBuffer(int(most)+bytes.MinRead), b.raw[:n]...))
		_, err = buffer.ReadFrom(io.LimitReader(source, most-n))
	}
	b.raw = buffer.Bytes()
	if len(b.raw) < buffer.Cap()/2 {
		b.raw = bytes.Clone(b.raw)
		b.recycle()
	}
	stop(err == nil)
	return err
}

// largeBuffers are used again: made anew for each body of unknown length they would be many times the budget
// before the garbage is collected.
var largeBuffers sync.Pool

func (b *body) largeBuffer(size int) []byte {
	large, ok := largeBuffers.Get().(*[]byte)
	if !ok || cap(*large) < size {
		made := make([]byte, 0, size)
		large = &made
	}
	b.large = large
	return *large
}

func (b *body) recycle() {
	if b.large != nil {
		largeBuffers.Put(b.large)
		b.large = nil
	}
}

// interrupt makes a read of the client's body fail when ctx ends, where the server can do that. The
// deadline is not set before: servers set their own with each read.
func (b *body) interrupt(ctx context.Context) (stop func(finished bool)) {
	if b.writer == nil {
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

// giveBack is called twice at most: with what the body didn't need, and with the rest at the end.
func (b *body) giveBack(bytes int64) {
	if bytes > 0 {
		b.held -= bytes
		b.budget.give(bytes)
	}
}

// readerUntil reads until ctx ends.
type readerUntil struct {
	ctx context.Context
	io.Reader
}

func (r readerUntil) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.Reader.Read(p)
}
