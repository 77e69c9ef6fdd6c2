package console

import (
	"slices"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock/inspect"
)

// folded leaves out the lock on a delivery if the request also has a key of its own, or waits for one. It keeps the lock if somebody waits for it.
func folded(all []inspect.KeyStatus) []inspect.KeyStatus {
	deliveries := make(map[string]bool) // the deliveries of requests that have another key, or wait for one
	note := func(key string, r *inspect.Request) {
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
	return slices.DeleteFunc(all, func(k inspect.KeyStatus) bool { return k.Waiting == 0 && deliveries[k.Key] })
}

// turnOf returns the turn as JSON shows it, or nil if the turn isn't known.
func turnOf(told *inspect.Turn) *inspect.Turn {
	if told == nil {
		return nil
	}
	return &inspect.Turn{Call: callOf(told.Call), Waiting: told.Waiting, Line: lineOf(told.Line)}
}

// maxLine is how many calls of a line are shown.
const maxLine = 20

func lineOf(line []inspect.Call) (shown []inspect.Call) {
	for _, c := range line[:min(len(line), maxLine)] {
		shown = append(shown, callOf(c))
	}
	return shown
}

func callOf(c inspect.Call) inspect.Call {
	c.Since, c.Request = utc(c.Since), requestOf(c.Request)
	return c
}

func requestOf(r *inspect.Request) *inspect.Request {
	if r != nil && *r == (inspect.Request{}) {
		return nil
	}
	return r
}

// besides returns the key that the request has locked for its delivery, if that is not the given one.
func besides(key string, r *inspect.Request) string {
	if r == nil || r.Delivery == key {
		return ""
	}
	return r.Delivery
}

// line has the calls behind another one, as the page shows them.
type line struct {
	Calls []inspect.Call
	More  int
	now   time.Time
}

func lineBehind(t *inspect.Turn, waits bool, now time.Time) line {
	return line{t.Line, t.More(waits), now}
}

func (l line) For(since time.Time) float64 { return max(0, l.now.Sub(since).Seconds()) }

func brief(key string) string {
	if text := []rune(shown(key)); len(text) > 20 {
		return string(text[:20]) + "…"
	}
	return shown(key)
}
