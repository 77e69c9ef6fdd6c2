package remember

import (
	"cmp"
	"net/http"
	"slices"
	"strconv"
)

const firstBuffer = 512 // the first size, in bytes, of the buffer for a body whose length isn't declared

// Recorder keeps a copy of a response while it is written. One goroutine at a time may use it.
type Recorder struct {
	before http.Header
	most   int
	room   func(bytes int) bool // reports, perhaps after a wait, whether the body may have this much memory; 0 gives all memory back

	begun    bool
	passes   string // the reason why the response can't be remembered; empty if it can be
	status   int
	header   http.Header
	removed  []string
	declared int64 // the declared length; negative if unknown
	written  int64
	body     []byte
	crowded  bool // there was no room for the rest of the body
	dropped  bool // the body was dropped, and its room given back
}

// NewRecorder returns a Recorder for a body of at most this many bytes. The Recorder calls room before the body takes memory. before has the headers
// as they are before the handler runs. NewRecorder copies them.
func NewRecorder(before http.Header, most int, room func(bytes int) bool) *Recorder {
	return &Recorder{before: EndToEnd(before, true), most: most, room: room, declared: -1}
}

// Begin notes the status and the headers. Call it before the status is passed on to the next writer, because that writer may change the headers, for
// example to compress the body. If Begin is called several times, the first call with a final status counts.
func (r *Recorder) Begin(status int, h http.Header) {
	if r.begun || status < 200 && status != http.StatusSwitchingProtocols {
		return
	}
	r.begun = true
	r.status = status
	switch {
	case !isFinal(status):
		r.Forget()
		return
	case hasTrailers(h) || streams(h.Get("Content-Type")):
		r.pass(Streamed)
		return
	}
	if length, err := strconv.ParseUint(h.Get("Content-Length"), 10, 63); err == nil {
		r.declared = int64(length)
	}
	r.header = EndToEnd(h, false)
	for name, old := range r.before {
		sameLine := func(line string) bool { return slices.Contains(old, line) }
		if _, has := h[name]; !has || isCookie(name) && !slices.ContainsFunc(h[name], sameLine) {
			r.removed = append(r.removed, name)
		}
		if slices.Equal(old, r.header[name]) {
			delete(r.header, name)
		}
	}
	slices.Sort(r.removed)
}

// Write copies a part of the body. Call Begin first.
func (r *Recorder) Write(p []byte) {
	if !r.begun {
		r.pass(Streamed)
	}
	r.written += int64(len(p))
	switch {
	case r.passes != "" || len(p) == 0:
	case r.tooLarge() || !r.grow(len(p)):
		r.drop()
	default:
		r.body = append(r.body, p...)
	}
}

func (r *Recorder) tooLarge() bool { return r.crowded || max(r.written, r.declared) > int64(r.most) }

func (r *Recorder) Crowded() bool { return r.crowded }

// grow makes the capacity of the body large enough for n more bytes, and reports whether there was memory for them.
func (r *Recorder) grow(n int) bool {
	need := len(r.body) + n
	if need <= cap(r.body) {
		return true
	}
	size := int(r.declared)
	if size < 0 {
		size = min(r.most, max(2*cap(r.body), firstBuffer))
	}
	if size = max(need, size); !r.room(size) {
		r.crowded = true
		return false
	}
	grown := make([]byte, len(r.body), size)
	copy(grown, r.body)
	r.body = grown
	return true
}

// Forget makes sure that the response isn't remembered. Call it when the handler has taken over the connection.
func (r *Recorder) Forget() { r.pass(Hijacked) }

func (r *Recorder) pass(why string) {
	r.passes = why
	r.drop()
}

// drop drops the body, and gives its room back to other responses.
func (r *Recorder) drop() {
	if r.body = nil; !r.dropped {
		r.dropped = true
		r.room(0)
	}
}

// Status returns the status that was written, or 200.
func (r *Recorder) Status() int { return cmp.Or(r.status, http.StatusOK) }

// Response returns the response to a request with this method. Call it when the handler has returned. h has the headers of the handler's writer, and
// perhaps trailers. If the response can't be remembered, a is nil and why is the reason. The Recorder can't be used afterwards.
func (r *Recorder) Response(method string, h http.Header) (a *Response, why string) {
	r.Begin(http.StatusOK, h)
	switch {
	case r.passes != "":
		return nil, r.passes
	case method == http.MethodConnect:
		return nil, Hijacked
	case hasTrailers(h):
		return nil, Streamed
	}
	a = &Response{Status: r.status, Header: r.header, Removed: r.removed}
	switch {
	case method == http.MethodHead:
		if r.declared < 0 && r.written > 0 && allowsBody(r.status) {
			a.Header = with(a.Header, "Content-Length", strconv.FormatInt(r.written, 10))
		}
	case !allowsBody(r.status):
	case r.declared >= 0 && r.declared != r.written:
		return nil, Truncated
	case r.tooLarge():
		a.TooLarge = true
		dropContent(a.Header)
	default:
		a.Body, r.body = r.body, nil
		a.Header.Del("Content-Length") // Response.Write sets it again
	}
	if len(a.Header) == 0 {
		a.Header = nil
	}
	return a, ""
}

func with(h http.Header, name, value string) http.Header {
	if h == nil {
		h = make(http.Header)
	}
	h.Set(name, value)
	return h
}

// isFinal reports whether a status may end a response. net/http panics at a status that doesn't have three digits.
func isFinal(status int) bool { return status >= 200 && status <= 999 }
