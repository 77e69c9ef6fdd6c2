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

	// firstRead is for most bodies of unknown length, lest each take the memory of max_body.
	firstRead = 16 << 10
)

// body is a request's body on its way to the handler. Nothing is read before the handler does,
// unless a key or a signature needs it; then the handler reads the same bytes again. Rules inside of each
// other share it: where the outer has stopped, the inner reads on.
type body struct {
	io.ReadCloser // the client's
	source        io.Reader
	request       *http.Request
	writer        http.ResponseWriter // for the read deadline; nil for none

	rule   *Rule // the innermost, with its budget
	budget *Budget
	filled bool  // it has tried to read all
	err    error // and that is what it found

	mu       sync.Mutex   // a proxy may still read while its handler returns
	replay   bytes.Reader // what was read, for the handler
	begun    bool         // the handler has begun to read
	ended    bool
	raw      []byte // what was read
	portions []portion
	fences   []string // the headers of all rules
}

// wrapBody puts a body into the request, and gives the function that ends its claim on the budget.
func (rule *Rule) wrapBody(w http.ResponseWriter, r *http.Request) (end func(refused bool)) {
	if r.Body == nil || r.Body == http.NoBody {
		return func(bool) {}
	}
	if b, ok := r.Body.(*body); ok && b.untouched() { // another rule's, around this one
		b.enter(rule)
		return func(bool) {}
	}
	b := newBody(w, r)
	b.enter(rule)
	return b.end
}

func newBody(w http.ResponseWriter, r *http.Request) *body {
	b := &body{ReadCloser: r.Body, source: r.Body, request: r, writer: w}
	r.Body = b
	return b
}

// enter makes a rule the one that reads. What a rule around it could not read, it may.
func (b *body) enter(rule *Rule) {
	b.rule, b.budget = rule, rule.budget()
	b.filled, b.err = b.filled && b.err == nil, nil
	b.mu.Lock()
	b.fences = append(b.fences, rule.fenceHeader())
	b.mu.Unlock()
}

// end is called when the rule is done with the request. Who handles a refusal may read the body, too,
// as long as it is known when the request ends.
func (b *body) end(refused bool) {
	b.mu.Lock()
	read := b.raw != nil
	b.mu.Unlock()
	switch ctx := b.request.Context(); {
	case !read: // nor any memory taken
	case refused && ctx.Done() != nil:
		context.AfterFunc(ctx, b.drop)
	default:
		b.drop()
	}
}

// drop frees the memory: nobody can read the body any more.
func (b *body) drop() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ended = true
	b.forget()
}

func (b *body) forget() {
	b.raw = nil
	b.replay.Reset(nil)
	b.giveBack(0)
}

// untouched says whether a handler would read all of the bytes from which a key is made.
func (b *body) untouched() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return !b.begun && !b.ended
}

// bodyBytes reads the body of a request, and leaves it to be read again.
func bodyBytes(r *http.Request) ([]byte, error) {
	if r.Body == nil || r.Body == http.NoBody {
		return nil, nil
	}
	b, ok := r.Body.(*body)
	if !ok || !b.untouched() { // a key is asked for outside of Rule.Serve
		b = newBody(nil, r)
		b.enter(&Rule{BodyBudget: NewBudget(defaultMaxBody)})
	}
	if !b.filled {
		b.filled = true
		b.err = b.fill()
	}
	if b.err == nil && int64(len(b.raw)) > b.rule.maxBody() { // it was large enough for the rule around
		return nil, errBodyTooLarge
	}
	return b.raw, b.err
}

// Read gives what was read before, and then the rest.
func (b *body) Read(p []byte) (int, error) {
	b.mu.Lock()
	b.begun = b.begun || len(p) > 0
	if b.replay.Len() > 0 {
		defer b.mu.Unlock()
		n, err := b.replay.Read(p)
		if b.replay.Len() == 0 { // nobody needs it any more
			b.forget()
		}
		return n, err
	}
	ended := b.ended
	b.mu.Unlock()
	if ended {
		return 0, http.ErrBodyReadAfterClose
	}
	n, err := b.source.Read(p)
	if err != nil {
		b.stripTrailers()
	}
	return n, err
}

// stripTrailers removes what a client sent as a fence: trailers come with the end of the body.
func (b *body) stripTrailers() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, name := range b.fences {
		stripFence(b.request.Trailer, name)
	}
}

// fill reads the body within max_body, the budget and the deadline. In a dry run the handler reads the rest,
// whatever came of it.
func (b *body) fill() error {
	most, length := b.rule.maxBody(), b.request.ContentLength
	if max(length, int64(len(b.raw))) > most {
		return errBodyTooLarge
	}
	ctx, cancel := context.WithTimeout(b.request.Context(), b.rule.bodyTimeout())
	defer cancel()
	err := refusedRead(ctx, b.readAll(ctx, length, most))
	b.mu.Lock()
	if len(b.raw) < cap(b.raw)/2 {
		b.raw = bytes.Clone(b.raw)
	}
	b.giveBack(int64(cap(b.raw)))
	b.replay.Reset(b.raw)
	b.mu.Unlock()
	b.stripTrailers()
	if err != nil && !errors.Is(err, errBodyTooLarge) && len(b.raw) > 0 && !b.rule.DryRun { // the rest will not come
		b.drop()
	}
	return err
}

// refusedRead makes a refusal of what went wrong.
func refusedRead(ctx context.Context, err error) error {
	var tooLarge *http.MaxBytesError
	switch {
	case err == nil:
		return nil
	case errors.Is(err, errFull), errors.As(err, &tooLarge):
		return errBodyTooLarge
	case errors.Is(err, os.ErrDeadlineExceeded): // then the server cancels the request's context too
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

// readAll reads to the end, or until it is longer than most. The length that the client declares is what the
// body has on the wire: a decoder in front may make more of it.
func (b *body) readAll(ctx context.Context, length, most int64) error {
	room, size := most, min(most, firstRead)
	switch {
	case len(b.raw) > 0:
		size = most
	case length >= 0:
		room, size = length, length
	}
	if err := b.take(ctx, room); err != nil {
		return err
	}
	stop := b.bound(ctx)
	err := b.readTo(ctx, size)
	if errors.Is(err, errFull) && size < most {
		if err = b.take(ctx, most); err == nil {
			err = b.readTo(ctx, most)
		}
	}
	stop(err == nil)
	return err
}

var errFull = errors.New("longer than may be read")

// readTo reads to the end, or until it is longer than size.
func (b *body) readTo(ctx context.Context, size int64) error {
	if int64(cap(b.raw)) <= size {
		b.raw = append(make([]byte, 0, size+1), b.raw...)
	}
	for int64(len(b.raw)) <= size {
		n, err := readUntil(ctx, b.source, b.raw[len(b.raw):size+1])
		b.raw = b.raw[:len(b.raw)+n]
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
	return errFull
}
