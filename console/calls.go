package console

import (
	"slices"
	"strings"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock"
	"github.com/caddy-redlock/caddy-redlock/redlock/inspect"
)

// folded leaves out the lock on a delivery if the request also has a key of its own, or waits for one. It keeps the lock if somebody waits for it.
func folded(all []redlock.KeyStatus) []redlock.KeyStatus {
	deliveries := make(map[string]bool) // the deliveries of requests that have another key, or wait for one
	note := func(key string, r *redlock.Request) {
		if r != nil && r.Delivery != "" && r.Delivery != key {
			deliveries[r.Delivery] = true
		}
	}
	for i := range all {
		note(all[i].Key, all[i].Request)
		for _, c := range all[i].Line {
			note(all[i].Key, c.Request)
		}
	}
	if len(deliveries) == 0 {
		return all
	}
	return slices.DeleteFunc(all, func(k redlock.KeyStatus) bool { return k.Waiting == 0 && deliveries[k.Key] })
}

// turnOf returns nil if the turn isn't known.
func turnOf(told *inspect.Turn) *Turn {
	if told == nil {
		return nil
	}
	return &Turn{Call: callOf(told.Call), Waiting: told.Waiting, Line: lineOf(told.Line)}
}

// maxLine is how many calls of a line are shown.
const maxLine = 20

func lineOf(line []redlock.Call) (shown []Call) {
	for _, c := range line[:min(len(line), maxLine)] {
		shown = append(shown, callOf(c))
	}
	return shown
}

func callOf(c redlock.Call) Call {
	return Call{Rule: c.Label, Since: utc(c.Since), Request: requestOf(c.Request)}
}

func requestOf(r *redlock.Request) *Request {
	if r == nil || *r == (redlock.Request{}) {
		return nil
	}
	return &Request{Method: r.Method, Path: r.Path, ID: r.ID, TraceID: r.TraceID, Client: r.Client, Delivery: r.Delivery}
}

// String returns the request as one line of text.
func (r *Request) String() string {
	if r == nil {
		return ""
	}
	text := strings.TrimSpace(r.Method + " " + r.Path)
	if r.ID != "" {
		text += ", request " + r.ID
	}
	if r.TraceID != "" {
		text += ", trace " + r.TraceID
	}
	if r.Client != "" {
		text += ", client " + r.Client
	}
	return strings.TrimPrefix(text, ", ")
}

// String returns the call as one line of text.
func (c Call) String() string {
	text := c.Request.String()
	if c.Rule != "" {
		text += ", rule " + c.Rule
	}
	return strings.TrimPrefix(text, ", ")
}

// String returns the call as one line of text.
func (t *Turn) String() string {
	if t == nil {
		return ""
	}
	return t.Call.String()
}

// More returns how many calls of the process wait besides those in Line. If waits is true, the call of the turn waits as well,
// and isn't counted.
func (t *Turn) More(waits bool) int {
	n := t.Waiting - len(t.Line)
	if waits {
		n--
	}
	return max(0, n)
}

// Besides returns the key that the request has locked for its delivery, if that is not the given one.
func (r *Request) Besides(key string) string {
	if r == nil || r.Delivery == key {
		return ""
	}
	return r.Delivery
}

// line has the calls behind another one, as the page shows them.
type line struct {
	Calls []Call
	More  int
	now   time.Time
}

func lineBehind(t *Turn, waits bool, now time.Time) line { return line{t.Line, t.More(waits), now} }

func (l line) For(since time.Time) float64 { return max(0, l.now.Sub(since).Seconds()) }

func brief(key string) string {
	if text := []rune(shown(key)); len(text) > 20 {
		return string(text[:20]) + "…"
	}
	return shown(key)
}
