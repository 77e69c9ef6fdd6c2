package middleware

import (
	"bytes"
	"context"
	"errors"
	"io"
	"iter"
	"maps"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddy-redlock/caddy-redlock/middleware/internal/budget"
)

const (
	// DefaultMaxBody is the MaxBody of a rule that sets none.
	DefaultMaxBody = 1 << 20
	// DefaultBodyTimeout is the BodyTimeout of a rule that sets none.
	DefaultBodyTimeout = 10 * time.Second
)

// body wraps the body of a request. A rule reads the body before the handler does, if the rule needs or buffers the body, or while the request waits
// for its lock. The handler then reads the same bytes again. Nested rules share one body: an inner rule continues to read where the outer rule has
// stopped.
type body struct {
	io.ReadCloser // the body that the client sends
	source        io.Reader
	request       *http.Request
	writer        http.ResponseWriter // for the read deadline; nil for none

	rule   *compiled   // the innermost rule so far, whose limits and budget apply
	parsed *bodyFields // the fields that the templates of a rule have read
	budget *Budget
	over   bool  // no rule will call the method end any more
	ahead  bool  // the request has waited for its lock, and its body could be read meanwhile
	filled bool  // fill was called
	err    error // the error of fill

	mu       sync.Mutex        // a proxy may still read while its handler returns
	begun    bool              // the handler has begun to read
	ended    bool              // the memory was freed, and nothing can be read any more
	atEnd    bool              // the client's body was read to its end
	pieces   [][]byte          // the bytes that rules have read; the handler takes them
	size     int64             // how many bytes rules have read
	portions []*budget.Portion // the room that the body has, in each budget
	trailers http.Header       // the trailers that the client has announced, except for names that only a rule or the server may set
}

func newBody(w http.ResponseWriter, r *http.Request) *body {
	b := &body{ReadCloser: r.Body, source: r.Body, request: r, writer: w, trailers: r.Trailer.Clone()}
	r.Body = b
	return b
}

// use makes the limits and the budget of this rule apply to further reads. If the outer rule could not read the body, this rule may try again.
func (b *body) use(rule *compiled) {
	b.rule, b.budget = rule, rule.BodyBudget
	b.filled, b.err = b.filled && b.err == nil, nil
	b.mu.Lock()
	rule.stripOurs(b.trailers)
	b.mu.Unlock()
}

// end is called when the rule is done with the request. Until the request's context ends, later handlers, such as handlers of errors, can still read
// the bytes that the handler has not read. If that context never ends, end frees the memory at once.
func (b *body) end() {
	b.stopReading()
	b.over = true
	b.mu.Lock()
	read, begun := b.pieces != nil, b.begun
	b.mu.Unlock()
	switch ctx := b.request.Context(); {
	case !read && !begun && b.request.Header.Get("Expect") != "": // with a Body that isn't its own, net/http's server would ask for the body after a refusal
		b.request.Body = b.ReadCloser
	case !read: // no memory was taken
	case ctx.Done() != nil:
		context.AfterFunc(ctx, b.drop)
	default:
		b.drop()
	}
}

// moment is how long the end of a request waits for a client that sends nothing of its body.
const moment = time.Second

// giveUp is called before a refusal or a remembered response. net/http's server reads more of the body before it sends such a response, and must not
// wait for a client that sends nothing.
func (b *body) giveUp() {
	switch {
	case b.isAtEnd():
	case b.err == errBodyTimeout || b.err == errBodyBroken: // the server must not take the rest of the body for the next request
		closeAfter(b.writer)
	case b.ahead:
		ctx, cancel := context.WithTimeout(b.request.Context(), moment)
		defer cancel()
		b.readAhead(ctx)
		b.patient().begin()
		b.stopReading()
	}
}

// stopReading ends a read that nobody waits for any more, because from now on only the server may use the wrappers around the body, such as Caddy's
// counter of bytes. If the client sends nothing for a moment, stopReading ends the request's context and, after the response, the connection. It
// can't do that behind a writer that hides the connection, such as http.TimeoutHandler's. Then the read ends when the server closes the body.
func (b *body) stopReading() {
	p, ok := b.source.(*patient)
	if !ok || !p.underWay() {
		return
	}
	done := *p.last.Load()
	select {
	case <-done:
	case <-time.After(moment):
		if http.NewResponseController(b.writer).SetReadDeadline(time.Now()) == nil {
			closeAfter(b.writer)
			<-done
		}
	}
}

// closeAfter makes net/http's server close the connection after the response, when the client has had time to read it. To tell the server to do so,
// it exceeds a MaxBytesReader.
func closeAfter(w http.ResponseWriter) {
	for inner := range wrapped(w) {
		w = inner
	}
	_, _ = http.MaxBytesReader(w, io.NopCloser(strings.NewReader("-")), 0).Read(make([]byte, 1))
}

// drop frees the memory of the body. The body can't be read after that.
func (b *body) drop() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ended = true
	b.forget()
}

func (b *body) forget() {
	b.pieces, b.size = nil, 0
	b.settle(0)
}

// untouched reports whether the handler has read nothing yet, and can still read everything: all bytes from which a key was made.
func (b *body) untouched() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return !b.begun && !b.ended
}

// Read returns the bytes that were read before, and then the rest.
func (b *body) Read(p []byte) (int, error) {
	b.mu.Lock()
	b.begun = b.begun || len(p) > 0
	if len(b.pieces) > 0 {
		defer b.mu.Unlock()
		n := copy(p, b.pieces[0])
		if b.pieces[0] = b.pieces[0][n:]; len(b.pieces[0]) == 0 {
			b.pieces[0], b.pieces = nil, b.pieces[1:]
		}
		if len(b.pieces) == 0 {
			b.forget()
		}
		return n, nil
	}
	ended, atEnd := b.ended, b.atEnd
	b.mu.Unlock()
	switch {
	case ended:
		return 0, http.ErrBodyReadAfterClose
	case atEnd:
		return 0, io.EOF
	}
	n, err := b.source.Read(p)
	if err != nil {
		b.stripTrailers()
		b.noteEnd(err)
	}
	return n, err
}

// noteEnd makes a body that was read to its end return EOF from then on. net/http's server closes the body when the response begins, and net/http's
// transport reads once more after the end, to see whether more comes. That read would find a closed body, and break the connection to an upstream
// that is still working.
func (b *body) noteEnd(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.atEnd = b.atEnd || err == io.EOF
}

func (b *body) isAtEnd() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.atEnd
}

// stripTrailers removes all trailers that the client hasn't announced. The rule could check only the names of announced trailers, and any other
// trailer may have the name of the fence, or of a header in a key.
func (b *body) stripTrailers() {
	b.mu.Lock()
	defer b.mu.Unlock()
	maps.DeleteFunc(b.request.Trailer, func(name string, _ []string) bool {
		_, announced := b.trailers[name]
		return !announced
	})
}

// keep makes the bytes read so far available to the handler. It copies the last piece if more than half of its memory is unused.
func (b *body) keep() {
	b.mu.Lock()
	last := len(b.pieces) - 1
	switch {
	case last < 0:
	case len(b.pieces[last]) == 0:
		b.pieces = b.pieces[:last]
	case len(b.pieces[last]) < cap(b.pieces[last])/2:
		b.pieces[last] = bytes.Clone(b.pieces[last])
	}
	var keep int
	for _, piece := range b.pieces {
		keep += cap(piece)
	}
	b.settle(int64(keep))
	b.mu.Unlock()
	b.stripTrailers()
}

func (b *body) portion() *budget.Portion {
	for _, p := range b.portions {
		if p.Budget() == b.budget.bytes {
			return p
		}
	}
	p := b.budget.bytes.Portion(b.rule.client(b.request), b.rule.MaxBody)
	b.portions = append(b.portions, p)
	return p
}

func (b *body) has() (bytes int64) {
	for _, p := range b.portions {
		bytes += p.Has()
	}
	return bytes
}

// settle gives back all room except for this many bytes.
func (b *body) settle(keep int64) {
	for _, p := range b.portions {
		p.Settle(keep)
		keep -= p.Has()
	}
}

// Memory is taken as bytes arrive, and not for a declared length. A body begins with room for firstRead bytes. If its length is declared, it stays in
// one piece: when the room is full, it grows to a multiple of the bytes that have arrived, so few bytes are copied. Any other body gets a further piece,
// as large as all pieces before it together, but at most pieceRead bytes.
const (
	firstRead = 1 << 10
	ahead     = 16 // the factor for a body whose length is declared
	pieceRead = 32 << 10
)

type reading int

const (
	whole   reading = iota // before the lock is taken: reads to the end, and waits for room and for bytes
	tried                  // in a dry run: reads only as much as there is room for, and leaves the rest to the next reader
	inSpare                // while the request waits for its lock: as tried, but leaves half of the room to bodies from which keys are read
)

var errFull = errors.New("longer than may be read")

// bodyBytes reads the body of a request, which can then be read again, and returns it.
func bodyBytes(r *http.Request) ([]byte, error) {
	b, err := bufferBody(r)
	if b == nil {
		return nil, err
	}
	return b.joined(), err
}

// joined returns the bytes read so far, in one piece.
func (b *body) joined() []byte {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch len(b.pieces) {
	case 0:
		return nil
	case 1:
	default:
		b.pieces = [][]byte{slices.Concat(b.pieces...)}
	}
	return b.pieces[0]
}

// bufferBody reads the body of a request, which can then be read again. It returns nil for a request without a body.
func bufferBody(r *http.Request) (*body, error) {
	if r.Body == nil || r.Body == http.NoBody {
		return nil, nil
	}
	b, ok := r.Body.(*body)
	if !ok || !b.untouched() { // the key is derived outside of serializer.Serve
		b = newBody(nil, r)
		b.over = true
		b.use(byDefault(Rule{BodyBudget: NewBudget(DefaultMaxBody)}))
	}
	if !b.filled {
		b.filled = true
		b.err = b.fill()
	}
	if b.err == nil && b.size > b.rule.MaxBody { // a rule around this one has a larger MaxBody, and has read the body
		return nil, errBodyTooLarge
	}
	return b, b.err
}

// fill reads the body within max_body, the budget and the deadline. In a dry run the handler reads the rest even after an error.
func (b *body) fill() error {
	if max(b.request.ContentLength, b.size) > b.rule.MaxBody {
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
	b.request.Header.Del("Expect")                                                                 // the client was told to continue, and an upstream need not tell it again
	if err != nil && err != errBodyTooLarge && err != errBodyCut && b.size > 0 && !b.rule.DryRun { // the rest wasn't read, so this part only takes memory
		b.drop()
	}
	return err
}

// readAhead reads the body while its request waits, until ctx ends. Over HTTP/1, the server notices that a client has left only when it has read the
// body to its end. The handler continues to read where readAhead has stopped. readAhead doesn't read a body whose declared length is above max_body,
// or that the client sends only when asked (Expect).
func (b *body) readAhead(ctx context.Context) {
	r := b.request
	if b.filled || !b.bounded() || r.ProtoMajor != 1 || r.ContentLength == 0 || r.Header.Get("Expect") != "" || upgrades(r) {
		return
	}
	b.ahead = true
	if r.ContentLength <= b.rule.MaxBody {
		_ = b.read(ctx, inSpare) // the handler continues to read, and gets any error of the connection
		b.keep()
	}
}

// readError turns an error of reading the body into the error with which the request is refused.
func readError(ctx context.Context, err error) error {
	var tooLarge *http.MaxBytesError
	switch {
	case err == nil:
		return nil
	case errors.Is(err, errFull):
		return errBodyTooLarge
	case errors.As(err, &tooLarge):
		return errBodyCut
	case errors.Is(err, os.ErrDeadlineExceeded): // check this first, because the server then cancels the request's context as well
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
	for b.size <= b.rule.MaxBody {
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

// grow takes room and memory for more bytes if the last piece is full. A declared length is only a hint: it is the length on the wire, and a decoder in
// front of the rule may make more bytes of it.
func (b *body) grow(ctx context.Context, how reading) error {
	if last := len(b.pieces) - 1; last >= 0 && len(b.pieces[last]) < cap(b.pieces[last]) {
		return nil
	}
	most, further := b.rule.MaxBody, min(b.size, pieceRead)
	declared := b.request.ContentLength >= b.size
	if declared {
		most, further = min(most, b.request.ContentLength), (ahead-1)*b.size
	}
	room := min(max(firstRead, b.size+further), most)
	if !b.take(ctx, room-b.has(), how) {
		return errBodyBudget
	}
	room++ // one more byte shows whether the body is longer
	if declared {
		b.pieces = [][]byte{append(make([]byte, 0, room), b.joined()...)}
	} else {
		b.pieces = append(b.pieces, make([]byte, 0, room-b.size))
	}
	return nil
}

// take takes more room in the budget, and reports whether it could. It waits for room only if how is whole.
func (b *body) take(ctx context.Context, more int64, how reading) bool {
	p := b.portion()
	switch {
	case more <= 0:
		return true
	case how == inSpare:
		return p.TrySpare(more)
	case how == tried:
		ended, cancel := context.WithCancel(ctx)
		cancel()
		ctx = ended
	}
	return p.Take(ctx, more)
}

func (b *body) readRoom(ctx context.Context) error {
	last := &b.pieces[len(b.pieces)-1]
	for len(*last) < cap(*last) {
		n, err := readUntil(ctx, b.source, (*last)[len(*last):cap(*last)])
		*last = (*last)[:len(*last)+n]
		b.size += int64(n)
		if err != nil {
			return err
		}
	}
	return nil
}

// interrupted is readRoom, but when ctx ends, it ends a read that is under way. It sets the deadline of the connection only then, for two reasons:
// servers set their own deadline with each read, and a connection is useless after a missed deadline.
func (b *body) interrupted(ctx context.Context) error {
	connection := http.NewResponseController(b.writer)
	done := make(chan struct{})
	unset := context.AfterFunc(ctx, func() {
		defer close(done)
		_ = connection.SetReadDeadline(time.Now()) // not all writers support deadlines
	})
	err := b.readRoom(ctx)
	if !unset() {
		<-done
		if err == nil || err == io.EOF { // the read was done just in time, so the connection remains usable
			_ = connection.SetReadDeadline(time.Time{})
		}
	}
	return err
}

// prepare reports whether the deadline of the connection may interrupt a read, which is allowed only before the lock is taken. If a read can't or
// must not be interrupted, prepare wraps the body so that the next reader can continue the read.
func (b *body) prepare(how reading) (interruptible bool) {
	if b.writer != nil && (how != whole || !b.bounded()) {
		b.patient()
	}
	return how == whole && b.writer != nil
}

func (b *body) patient() *patient {
	p, ok := b.source.(*patient)
	if !ok {
		p = &patient{source: b.source, buffer: make([]byte, firstRead)}
		b.source = p
	}
	return p
}

// bounded reports whether a deadline can be set for reads from the connection.
func (b *body) bounded() bool {
	_, ok := unwrapTo[interface{ SetReadDeadline(time.Time) error }](b.writer)
	return ok
}

func readUntil(ctx context.Context, source io.Reader, p []byte) (int, error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	if patient, ok := source.(*patient); ok {
		return patient.readUntil(ctx, p)
	}
	return source.Read(p)
}

// unwrapTo returns the outermost of the wrapped writers that has the interface T.
func unwrapTo[T any](w http.ResponseWriter) (found T, ok bool) {
	for w := range wrapped(w) {
		if found, ok = w.(T); ok {
			return found, true
		}
	}
	return found, false
}

// wrapped yields a writer, and the writers inside it.
func wrapped(w http.ResponseWriter) iter.Seq[http.ResponseWriter] {
	return func(yield func(http.ResponseWriter) bool) {
		for w != nil && yield(w) {
			wrapper, wraps := w.(interface{ Unwrap() http.ResponseWriter })
			if !wraps {
				return
			}
			w = wrapper.Unwrap()
		}
	}
}

// patient reads from a source whose reads can't be interrupted, or must not be, because the handler will continue to read. A reader that times out
// leaves its unfinished read to the next reader. If there is no next reader, stopReading ends the read.
type patient struct {
	source io.Reader
	buffer []byte
	last   atomic.Pointer[chan struct{}] // closed when the last read is done; atomic because a proxy may still read while its handler returns

	rest []byte // bytes that nobody has taken yet; until the last read is done, rest and err belong to its goroutine
	err  error  // the error that follows rest
}

func (p *patient) readUntil(ctx context.Context, into []byte) (int, error) {
	p.begin()
	select {
	case <-*p.last.Load():
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	n := copy(into, p.rest)
	if p.rest = p.rest[n:]; len(p.rest) > 0 {
		return n, nil
	}
	return n, p.err
}

// begin starts a read in a goroutine, unless there are bytes or an error to return first.
func (p *patient) begin() {
	if p.isEmpty() {
		done := make(chan struct{})
		p.last.Store(&done)
		go p.read(done)
	}
}

func (p *patient) isEmpty() bool { return !p.underWay() && len(p.rest) == 0 && p.err == nil }

func (p *patient) underWay() bool {
	last := p.last.Load()
	if last == nil {
		return false
	}
	select {
	case <-*last:
		return false
	default:
		return true
	}
}

func (p *patient) read(done chan struct{}) {
	defer close(done)
	defer func() {
		if recover() != nil { // a panic in this goroutine would end the process; in the handler's, the server recovers
			p.err = errBodyBroken
		}
	}()
	n, err := p.source.Read(p.buffer)
	p.rest, p.err = p.buffer[:n], err
}

// Read waits as long as the source takes, which suits the handler.
func (p *patient) Read(into []byte) (int, error) {
	if p.isEmpty() {
		return p.source.Read(into)
	}
	return p.readUntil(context.Background(), into)
}
