package middleware

import (
	"bytes"
	"context"
	"io"
	"maps"
	"net/http"
	"net/netip"
	"sync"
	"time"
)

const (
	// DefaultMaxBody is how many bytes of a body are read unless something else is set.
	DefaultMaxBody = 1 << 20
	// DefaultBodyTimeout is how long such a body may take to arrive unless something else is set.
	DefaultBodyTimeout = 10 * time.Second
)

// body is a request's body on its way to the handler. Nothing is read before the handler does so, unless a key or a signature
// needs it, the rule buffers it, or the request waits; then the handler reads the same bytes again. Nested rules share it: where
// the outer one has stopped, the inner one reads on.
type body struct {
	io.ReadCloser // the client's
	source        io.Reader
	request       *http.Request
	writer        http.ResponseWriter // for the read deadline; nil for none

	rule   *Serializer // the innermost, with its budget
	parsed *bodyFields // what the templates of a rule have read
	budget *Budget
	filled bool  // an attempt was made to read all of it
	err    error // the result of that attempt

	mu       sync.Mutex   // a proxy may still read while its handler returns
	replay   bytes.Reader // what was read, for the handler
	begun    bool         // the handler has begun to read
	ended    bool
	atEnd    bool        // the source is, for good
	raw      []byte      // what was read
	portions []*portion  // one for each budget
	trailers http.Header // that the client has announced, without fences
}

// wrapBody puts a body into the request and returns it, or nil if there is none to end.
func (rule *Serializer) wrapBody(w http.ResponseWriter, r *http.Request) *body {
	if r.Body == nil || r.Body == http.NoBody {
		return nil
	}
	if b, ok := r.Body.(*body); ok && b.untouched() { // that of a rule around this one, which will end it
		b.enter(rule)
		return nil
	}
	b := newBody(w, r)
	b.enter(rule)
	return b
}

func newBody(w http.ResponseWriter, r *http.Request) *body {
	b := &body{ReadCloser: r.Body, source: r.Body, request: r, writer: w, trailers: r.Trailer.Clone()}
	r.Body = b
	return b
}

// enter makes a rule the one that reads. It may try again what a rule around it could not read.
func (b *body) enter(rule *Serializer) {
	b.rule, b.budget = rule, rule.BodyBudget
	b.filled, b.err = b.filled && b.err == nil, nil
	b.mu.Lock()
	rule.stripOurs(b.trailers)
	b.mu.Unlock()
}

// end is called when the rule is done with the request. What the handler has not read remains for those that come after it,
// such as handlers of errors, if it is known when the request ends.
func (b *body) end() {
	b.mu.Lock()
	read, begun := b.raw != nil, b.begun
	b.mu.Unlock()
	switch ctx := b.request.Context(); {
	case !read && !begun && b.request.Header.Get("Expect") != "": // net/http must find its own body, or asks for it after a refusal
		b.request.Body = b.ReadCloser
	case !read: // no memory was taken
	case ctx.Done() != nil:
		context.AfterFunc(ctx, b.drop)
	default:
		b.drop()
	}
}

// drop frees the memory; the body can't be read any more.
func (b *body) drop() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ended = true
	b.forget()
}

func (b *body) forget() {
	b.raw = nil
	b.replay.Reset(nil)
	b.settle(0)
}

// untouched reports whether a handler would still read all of the bytes from which a key is made.
func (b *body) untouched() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return !b.begun && !b.ended
}

// Read returns what was read before, and then the rest.
func (b *body) Read(p []byte) (int, error) {
	b.mu.Lock()
	b.begun = b.begun || len(p) > 0
	if b.replay.Len() > 0 {
		defer b.mu.Unlock()
		n, err := b.replay.Read(p)
		if b.replay.Len() == 0 { // it is not needed any more
			b.forget()
		}
		return n, err
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

// noteEnd makes a body that was read to its end stay there. net/http's server closes it when the response begins, and net/http's
// transport reads once more after the end, to see whether more comes: it would find a closed body, and break off the connection
// to an upstream that is still working.
func (b *body) noteEnd(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.atEnd = b.atEnd || err == io.EOF
}

// stripTrailers removes all trailers that come with the end of the body unannounced: nobody could see before that one of them has
// the name of a fence, or of a header that is in a key.
func (b *body) stripTrailers() {
	b.mu.Lock()
	defer b.mu.Unlock()
	maps.DeleteFunc(b.request.Trailer, func(name string, _ []string) bool {
		_, announced := b.trailers[name]
		return !announced
	})
}

// keep makes what was read available to the handler, in no more memory than that needs.
func (b *body) keep() {
	b.mu.Lock()
	if len(b.raw) < cap(b.raw)/2 {
		b.raw = bytes.Clone(b.raw)
	}
	b.settle(int64(cap(b.raw)))
	b.replay.Reset(b.raw)
	b.mu.Unlock()
	b.stripTrailers()
}

// portion returns what the body has of its rule's budget.
func (b *body) portion() *portion {
	for _, p := range b.portions {
		if p.budget == b.budget {
			return p
		}
	}
	p := b.budget.portion(b.rule.client(b.request), b.rule.MaxBody)
	b.portions = append(b.portions, p)
	return p
}

// held returns how much room the body has in all budgets.
func (b *body) held() (bytes int64) {
	for _, p := range b.portions {
		bytes += p.held()
	}
	return bytes
}

// settle gives back all room but so many bytes.
func (b *body) settle(keep int64) {
	for _, p := range b.portions {
		p.settle(keep)
		keep -= p.held()
	}
}

func (rule *Serializer) clientAddress(r *http.Request) string {
	if rule.ClientAddress != nil {
		return rule.ClientAddress(r)
	}
	return r.RemoteAddr
}

// client returns for whom the room in a budget is counted: an IPv4 address, or the IPv6 network that one subscriber has.
func (rule *Serializer) client(r *http.Request) string {
	text := rule.clientAddress(r)
	address, err := netip.ParseAddr(text)
	if err != nil {
		withPort, err := netip.ParseAddrPort(text)
		if err != nil {
			return text // that of a Unix socket, for example
		}
		address = withPort.Addr()
	}
	if address = address.Unmap().WithZone(""); address.Is4() {
		return address.String()
	}
	network, _ := address.Prefix(64) // valid for IPv6
	return network.String()
}
