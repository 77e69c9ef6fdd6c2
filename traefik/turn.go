package traefik

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"
)

// turn is the turn of a client's request: a request to the agent, which lasts as long as the client's.
type turn struct {
	agent    *agent
	rule     *rule
	info     *ruleInfo
	conn     *conn
	sent     time.Time      // when the agent was asked
	copied   *bodyCopy      // the part of the request's body that the agent has got, or nil
	response *http.Response // the agent's response
	lines    *json.Decoder  // the lines of the response; nil if the agent has given no turn
	first    line

	// The fields of a request that has a lock. Without a lock they are nil.
	ctx     context.Context // the context of the request that is served: it ends with the lease
	cancel  context.CancelCauseFunc
	watcher *time.Timer
	read    chan struct{} // closed when watch has ended

	whole bool // all of the response was read
}

type asked struct {
	Method  string      `json:"method"`
	Target  string      `json:"target"`
	Host    string      `json:"host"`
	Proto   string      `json:"proto"`
	Remote  string      `json:"remote"`
	Header  http.Header `json:"header"`
	Trailer []string    `json:"trailer,omitempty"`
	Length  int64       `json:"length"`
	Body    bool        `json:"body,omitempty"`
}

// line is a line of the agent about a turn: the first one, or one after a renewal.
type line struct {
	Mark          int         `json:"mark"`
	ValidMs       int64       `json:"valid_ms"`
	Pass          bool        `json:"pass"`
	Set           http.Header `json:"set"`
	Strip         []string    `json:"strip"`
	StripTrailers []string    `json:"strip_trailers"`
	Released      *bool       `json:"released"`
}

const (
	silence    = 10 * time.Second       // how long a connection to the agent may take, and how much longer than the rule says its answer
	endsWithin = 5 * time.Second        // how long the end of a response waits until the agent has released the lock
	askAgain   = time.Second            // the pause between two attempts while an agent is about to stop
	brief      = 250 * time.Millisecond // how long a turn lasts before watch reads the lines of an agent on this machine
)

// take asks the agent for a turn, and waits for the turn in line, until the client leaves. An error says why the agent could not be asked. If the
// agent is about to stop, take asks the agent that takes its place: at once, and then for as long as the rule's wait allows.
func (t *turn) take(r *http.Request) error {
	withBody := t.info.ReadsBody && r.ContentLength != 0 && r.Body != nil && r.Body != http.NoBody
	text, err := describe(r, withBody)
	if err != nil {
		return err
	}
	until := time.Now().Add(time.Duration(t.info.WaitMs) * time.Millisecond)
	goes := false
	for {
		err = t.try(r, text, withBody, goes)
		if err == nil && !t.agentGoes() {
			return nil
		}
		if r.Context().Err() != nil {
			if t.conn != nil {
				t.abort()
			}
			return r.Context().Err()
		}
		pause := time.Duration(0)
		if goes {
			pause = time.Until(until)
			if pause <= 0 {
				return err
			}
			if pause > askAgain {
				pause = askAgain
			}
		} else if err == nil {
			goes = true
		} else if t.conn != nil && t.conn.kept {
			t.agent.drop() // the agent has restarted since the connection was made
		} else {
			return err
		}
		if !t.rewind(r) {
			return errBodyLate
		}
		select {
		case <-r.Context().Done():
			return r.Context().Err()
		case <-time.After(pause):
		}
	}
}

var errBodyLate = errors.New("the body of the request did not arrive in time")

func (t *turn) try(r *http.Request, text []byte, withBody, anew bool) error {
	var err error
	t.conn, err = t.agent.connect(r.Context(), anew)
	if err != nil {
		return err
	}
	err = t.ask(r, text, withBody)
	if err != nil {
		t.abort()
	}
	if isSilence(err) {
		t.conn.kept = false // another connection would wait in vain as well
		t.agent.drop()
		return errSilent
	}
	return err
}

// agentGoes reports whether the agent has refused the turn because it is about to stop, or has no room.
func (t *turn) agentGoes() bool {
	h := t.response.Header
	return t.response.StatusCode == http.StatusServiceUnavailable && (h.Get("Redlock-Agent-Error") != "" || h.Get("Redlock-Outcome") == "stopping")
}

// rewind breaks the turn off, and makes the request's body begin anew. It reports false if the part of the body that is being read doesn't
// come in time.
func (t *turn) rewind(r *http.Request) bool {
	if t.conn != nil {
		t.abort()
	}
	if t.copied == nil {
		return true
	}
	select {
	case <-t.copied.done:
	case <-time.After(time.Duration(t.info.BodyTimeoutMs) * time.Millisecond):
		return false
	}
	r.Body = io.NopCloser(io.MultiReader(bytes.NewReader(t.copied.kept.Bytes()), r.Body))
	t.copied = nil
	return true
}

// describe returns the line that describes a request, without its line break.
func describe(r *http.Request, withBody bool) ([]byte, error) {
	a := asked{Method: r.Method, Target: r.RequestURI, Host: r.Host, Proto: r.Proto, Remote: r.RemoteAddr, Header: r.Header, Length: r.ContentLength, Body: withBody}
	if r.Trailer != nil {
		for name := range r.Trailer {
			a.Trailer = append(a.Trailer, name)
		}
	}
	if r.URL != nil && r.Method != http.MethodConnect {
		a.Target = r.URL.RequestURI() // other middlewares may have changed it
	}
	return json.Marshal(a)
}

// ask sends the request, and waits for the response, until the client leaves, or until the agent must have answered.
func (t *turn) ask(r *http.Request, text []byte, withBody bool) error {
	c := t.conn
	left := context.AfterFunc(r.Context(), func() { _ = c.net.Close() })
	t.lines = nil // forget the lines of a turn that was broken off
	t.sent = time.Now()
	patience := t.info.patience
	if withBody {
		patience += time.Duration(t.info.BodyTimeoutMs) * time.Millisecond
	}
	_ = c.net.SetDeadline(t.sent.Add(patience))
	_, err := fmt.Fprintf(c.net, "%s%x\r\n%s\n\r\n", t.rule.opening, len(text)+1, text)
	if err == nil {
		if withBody {
			t.copied = copyBody(r, c.net, t.info.MaxBody)
		}
		t.response, err = c.response()
	}
	if err == nil && t.response.StatusCode == http.StatusOK {
		err = t.begin(r)
	}
	if !left() && err == nil { // the connection is closed, or is about to be: the lock is gone
		return context.Canceled
	}
	return err
}

func (t *turn) begin(r *http.Request) error {
	t.lines = json.NewDecoder(t.response.Body)
	t.first = line{Set: r.Header.Clone()} // to which the decoder adds
	if err := t.lines.Decode(&t.first); err != nil {
		return fmt.Errorf("its response: %w", err)
	}
	if t.first.ValidMs <= 0 && !t.first.Pass {
		return errors.New("its response has neither a lock nor a reason")
	}
	return t.conn.net.SetDeadline(time.Time{})
}

// refusal returns an error if the agent has refused the turn for a reason that isn't meant for the client, and nil otherwise.
func (t *turn) refusal() error {
	if t.response.Header.Get("Redlock-Agent-Error") == "" {
		return nil
	}
	text, _ := io.ReadAll(io.LimitReader(t.response.Body, 64<<10))
	t.abort()
	return errors.New("it answers " + t.response.Status + ": " + detailOf(text))
}

// request returns the request for the upstream. It sets the headers that the agent sets, such as the fence, in place of headers that a client has
// sent under their names. The context of the request ends when the lock is lost, and when the client leaves only if the rule says so. A handler that
// uses r after the lock is released finds no fence at all.
func (t *turn) request(r *http.Request) *http.Request {
	for _, name := range t.first.Strip {
		delete(r.Header, name)
		delete(t.first.Set, name)
	}
	r.Header.Del(t.info.FenceHeader)
	r.Header.Del(t.rule.text("key_header"))
	r.Header.Del(slotHeader)
	for _, name := range t.first.StripTrailers {
		delete(r.Trailer, name)
	}
	if t.copied != nil {
		<-t.copied.done
		t.copied.replay(r)
	} else if r.Trailer != nil {
		keepAnnounced(r)
	}
	ctx := r.Context()
	if !t.first.Pass {
		if t.info.OnClientAbort != "cancel" {
			ctx = context.WithoutCancel(ctx)
		}
		ctx, t.cancel = context.WithCancelCause(ctx)
		t.ctx = ctx
		t.listen()
	}
	served := r.WithContext(ctx)
	served.Header = t.first.Set
	return served
}

// listen starts watch, which reads the lines of the agent. With an agent on this machine, watch begins only when the turn has lasted a while: the
// lease counts from the mark that was sent, so nothing is missed, and brief requests need no watch. A connection through a network may break so that
// only the agent notices, and releases the lock. So with such an agent, watch begins at once.
func (t *turn) listen() {
	t.read = make(chan struct{})
	after := time.Duration(0)
	if t.agent.local {
		after = time.Duration(t.first.ValidMs)*time.Millisecond - time.Since(t.sent)
		if after > brief {
			after = brief
		}
	}
	t.watcher = time.AfterFunc(after, t.watch)
}

// end ends a turn that the agent has given. The lock is released before the response ends, unless the agent takes long.
func (t *turn) end(broken bool) {
	alone := t.watcher == nil || t.watcher.Stop()
	if broken || (t.ctx != nil && t.ctx.Err() != nil) {
		t.abort()
	} else {
		_ = t.conn.net.SetDeadline(time.Now().Add(endsWithin))
		_, err := t.conn.net.Write(lastChunk)
		if alone && err == nil {
			_, err = io.Copy(io.Discard, t.response.Body)
			t.whole = err == nil
		}
	}
	if !alone {
		<-t.read
	}
	if t.whole {
		t.agent.keep(t.conn)
	} else {
		t.abort()
	}
	if t.cancel != nil {
		t.cancel(nil)
	}
}

// refused ends a turn that was refused, and returns the refusal.
func (t *turn) refused() (text []byte) {
	text, err := io.ReadAll(t.response.Body)
	if err == nil && t.copied == nil && !t.response.Close {
		if _, err = t.conn.net.Write(lastChunk); err == nil {
			t.agent.keep(t.conn)
			return text
		}
	}
	t.abort()
	return text
}

// giveUpBody is called before a response that isn't the upstream's, when the agent gets no more of the body. It ends the read that is
// under way, because Traefik's log counts the bytes that were read. A client that sends nothing for a second gets its response all the
// same, and its connection is closed, because the rest of the body must not be taken for its next request. If a writer of Traefik's
// hides the connection, the read ends with the connection.
func (t *turn) giveUpBody(w http.ResponseWriter, r *http.Request) {
	if t.copied == nil {
		return
	}
	select {
	case <-t.copied.done:
		return
	case <-time.After(time.Second):
	}
	if r.ProtoMajor == 1 {
		w.Header().Set("Connection", "close")
	}
	if http.NewResponseController(w).SetReadDeadline(time.Now()) == nil {
		<-t.copied.done
	}
}

// abort breaks the turn off: the agent sees that its connection is closed.
func (t *turn) abort() { _ = t.conn.net.Close() }
