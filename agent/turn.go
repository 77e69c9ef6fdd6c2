package agent

import (
	"bufio"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/caddy-redlock/caddy-redlock/internal/engine"
	"github.com/caddy-redlock/caddy-redlock/middleware"
)

const maxTurnLine = 512 << 10 // the most bytes of the line that describes a request with all its headers

// turnRequest describes the request of a gateway's client. It is the second line of POST /v1/turn.
type turnRequest struct {
	Method  string      `json:"method"`
	Target  string      `json:"target"`
	Host    string      `json:"host"`
	Proto   string      `json:"proto"`
	Remote  string      `json:"remote"`
	Header  http.Header `json:"header"`
	Trailer []string    `json:"trailer"`
	Length  int64       `json:"length"`
	Body    bool        `json:"body"` // the frames of a body follow
}

// turn is one request of a gateway's client, for which a rule takes locks.
type turn struct {
	agent  *Agent
	rule   *gatewayRule
	stream *stream
	*exchange
	frames  *frames
	request *http.Request
	sent    turnRequest

	begun bool
}

// serveTurn takes the locks for a request of a gateway's client, and holds them for as long as the gateway keeps its request to the agent open.
func (a *Agent) serveTurn(x *exchange, _ *http.Request) error {
	t := &turn{agent: a, exchange: x, stream: &stream{exchange: x}}
	if !x.open {
		return a.turns.refused(x, nil, refuse(http.StatusBadRequest, "want a body that is sent in chunks, and kept open while the turn lasts"))
	}
	if err := a.enter(); err != nil {
		return a.turns.refused(x, nil, err)
	}
	defer a.leave()
	if err := t.read(); err != nil {
		return a.turns.refused(x, nil, err)
	}
	if t.frames == nil {
		x.watch()
	}
	err := t.rule.rule.Serve(a.locker, headless{make(http.Header), x.control}, t.request, t.hold)
	var refusal engine.Refusal
	switch {
	case !t.begun && errors.As(err, &refusal):
		return refusal
	case !t.begun && err != nil:
		return errFrame
	case err == nil:
		t.stream.end(releasedFor(t.unlock()))
	}
	return nil
}

// headless is the ResponseWriter that the rule gets. It drops the response, because the gateway sends one itself. The rule uses the
// ResponseController to set the deadline for reading the body.
type headless struct {
	header http.Header
	*http.ResponseController
}

func (w headless) Header() http.Header         { return w.header }
func (w headless) Write(p []byte) (int, error) { return len(p), nil }
func (w headless) WriteHeader(int)             {}

func (t *turn) read() error {
	settings, err := readLine(t.lines, maxSettings)
	if err != nil {
		return lineError(err)
	}
	line, err := readLine(t.lines, maxTurnLine)
	if err != nil {
		return lineError(err)
	}
	_ = t.control.SetReadDeadline(time.Time{}) // the rule sets a deadline for the body
	if t.rule, err = t.agent.rule(settings); err != nil {
		return err
	}
	if err := json.Unmarshal(line, &t.sent); err != nil {
		return refuse(http.StatusBadRequest, "the line that describes the request: %v", wrongJSON(err))
	}
	return t.describe()
}

// describe makes the request of the gateway's client as a server would have received it. While the request waits for its lock, its context ends if the
// gateway leaves. After the wait the context lasts as long as the turn, because the work may continue when the gateway's client has left.
func (t *turn) describe() error {
	u, err := parseTarget(t.sent.Method, t.sent.Target)
	if err != nil {
		return refuse(http.StatusBadRequest, "target: not that of a request")
	}
	major, minor, ok := http.ParseHTTPVersion(t.sent.Proto)
	if !ok {
		major, minor = 1, 1
	}
	header := t.sent.Header
	if header == nil {
		header = make(http.Header)
	}
	request := &http.Request{
		Method: t.sent.Method, URL: u, RequestURI: t.sent.Target, Proto: t.sent.Proto, ProtoMajor: major, ProtoMinor: minor,
		Host: t.sent.Host, RemoteAddr: t.sent.Remote, Header: header.Clone(), ContentLength: t.sent.Length, Body: http.NoBody,
	}
	for _, name := range t.sent.Trailer {
		if request.Trailer == nil {
			request.Trailer = make(http.Header)
		}
		request.Trailer[name] = nil
	}
	if t.sent.Body {
		t.frames = &frames{from: t.lines, end: t.watch}
		if t.rule.rule.ReadsBody() {
			request.Body = t.frames
		}
	}
	t.request = request.WithContext(t.wait)
	return nil
}

func parseTarget(method, target string) (*url.URL, error) {
	if method != http.MethodConnect || strings.HasPrefix(target, "/") {
		return url.ParseRequestURI(target)
	}
	u, err := url.ParseRequestURI("http://" + target)
	if err == nil {
		u.Scheme = ""
	}
	return u, err
}

// hold is the handler that the rule calls when it has the locks. It returns when the gateway ends its request to the agent.
func (t *turn) hold(_ http.ResponseWriter, r *http.Request) error {
	if err := t.dropBody(r); err != nil {
		return errors.Join(errLeft, err)
	}
	taken, _ := middleware.TurnFromContext(r.Context())
	t.begun = true
	t.stream.lock = taken.Lock
	return t.stream.hold(t.changes(r, taken), 0)
}

// dropBody reads the body to its end, and so frees its memory. Only the upstream still needs the body, and the gateway sends it there.
func (t *turn) dropBody(r *http.Request) error {
	var body io.Reader = r.Body
	switch {
	case t.frames == nil:
		return nil
	case !t.rule.rule.ReadsBody():
		body = t.frames
	}
	_, err := io.Copy(io.Discard, body)
	return err
}

// unlock returns the error of the lock's release, for a turn that the gateway has ended in order.
func (t *turn) unlock() error {
	if t.stream.lock == nil {
		return nil
	}
	return t.stream.lock.Unlock() // the rule has released the lock, and a second Unlock returns the same error
}

// changes returns the JSON fields of the first line that say how the gateway must change the request's headers. If there is a lock, they begin with a
// comma, because the fields of the lock come before them.
func (t *turn) changes(r *http.Request, taken middleware.Turn) []byte {
	change := struct {
		Pass    bool               `json:"pass,omitempty"`
		Outcome middleware.Outcome `json:"outcome"`
		Set     http.Header        `json:"set,omitempty"`
		Strip   []string           `json:"strip,omitempty"`
		Trailer []string           `json:"strip_trailers,omitempty"`
	}{Pass: taken.Lock == nil, Outcome: taken.Outcome}
	for name, values := range r.Header {
		if !slices.Equal(values, t.sent.Header[name]) {
			if change.Set == nil {
				change.Set = make(http.Header)
			}
			change.Set[name] = values
		}
	}
	for name := range t.sent.Header {
		if _, ok := r.Header[name]; !ok {
			change.Strip = append(change.Strip, name)
		}
	}
	for _, name := range t.sent.Trailer {
		if _, ok := r.Trailer[name]; !ok {
			change.Trailer = append(change.Trailer, name)
		}
	}
	text, _ := json.Marshal(change) // all of these values can be encoded
	text = text[1 : len(text)-1]
	if taken.Lock != nil {
		return append([]byte{','}, text...)
	}
	return text
}

// frames is the body of a request, which the gateway sends in frames. A line before each frame has its length in decimal. A frame of 0 bytes is the
// end.
type frames struct {
	from *bufio.Reader
	left int64
	err  error
	end  func() // called when the body has ended in order
}

var errFrame = refuse(http.StatusBadRequest, "the frames of the body are broken, or end early")

func (f *frames) Read(p []byte) (int, error) {
	if f.err == nil && f.left == 0 {
		f.err = f.next()
	}
	if f.err != nil {
		return 0, f.err
	}
	n, err := f.from.Read(p[:min(int64(len(p)), f.left)])
	f.left -= int64(n)
	if err != nil {
		f.err = io.ErrUnexpectedEOF
		if tooLate(err) {
			f.err = err
		}
	}
	return n, f.err
}

// next begins the next frame, or returns io.EOF after the last one.
func (f *frames) next() error {
	line, err := f.from.ReadSlice('\n')
	switch {
	case tooLate(err):
		return err
	case err != nil:
		return io.ErrUnexpectedEOF
	}
	n, err := strconv.ParseInt(string(line[:len(line)-1]), 10, 32)
	switch {
	case err != nil || n < 0:
		return errFrame
	case n > 0:
		f.left = n
		return nil
	}
	f.end()
	return io.EOF
}

// Close does nothing, because the body is a part of the gateway's request.
func (f *frames) Close() error { return nil }
