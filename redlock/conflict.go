package redlock

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
)

// compare decides, by what the masters have said, whether this process may lock. Callers hold mu.
func (r *registry) compare() {
	now := time.Now()
	var told, fresh []time.Time
	var conflict, other *set
	for i := range r.views {
		v := &r.views[i]
		if v.sent.IsZero() || now.Sub(v.sent) > r.own.life() {
			continue
		}
		if v.inUse && r.state != waiting && (r.state == inUse || !v.sent.Before(r.announcedAt)) {
			told = append(told, v.sent)
		}
		if now.Sub(v.sent) < doubtTime {
			fresh = append(fresh, v.sent)
		}
		for _, u := range v.uses {
			if u.set.MaxTTL > r.own.Covers || r.own.MaxTTL > u.set.Covers && r.persists("ttl "+u.text, v, u, now) {
				r.logOnce(fmt.Sprint("ttl ", u.set.MaxTTL, u.set.Covers), "another process has a longer max ttl than this one's restart guard covers, or the other way round: a restarted master may forget a lock that is still valid (docs/operations.md)",
					"its max ttl", ms(u.set.MaxTTL), "its guards cover", ms(u.set.Covers), "our max ttl", r.maxTTL, "ours cover", r.covers())
			}
			if r.same(v, u, now) {
				continue
			}
			meets := r.own.meets(u.set, true) && (r.own.meets(u.set, false) || !r.isReal(v, u, now))
			if !meets {
				r.logOnce(u.set.String(), "another process has other masters, and both could hold the same lock: the process that was here first goes on, the other waits until it is gone (docs/operations.md)",
					"its masters", u.set.String(), "our masters", r.own.String())
			}
			if u.set.Waits {
				continue
			}
			other = u.set
			if !meets && r.wasFirst(v, u) {
				conflict = u.set
			}
		}
	}
	r.decide(conflict, len(fresh) >= r.quorum, len(told) >= r.quorum, now)
	if len(told) >= r.quorum {
		slices.SortFunc(told, time.Time.Compare)
		until := told[len(told)-r.quorum].Add(r.own.life() - drift(r.own.life()))
		if r.registered.Swap(&until) == nil {
			close(r.firstKnown)
		}
	}
	r.logChange(other, len(fresh) >= r.quorum)
}

// same reports whether a process has the same masters as this one, or may have. Callers hold mu.
func (r *registry) same(v *view, u use, now time.Time) bool {
	return r.own.same(u.set, false) || r.own.same(u.set, true) && !r.isReal(v, u, now)
}

// isReal reports whether a difference between two sets is real. It may only be that one process hasn't noticed
// a restart yet. Callers hold mu.
func (r *registry) isReal(v *view, u use, now time.Time) bool {
	return r.persists(u.text, v, u, now) || r.coexist(v, u, now)
}

// coexist reports that our servers and those of another set have been there side by side: all of ours have run for longer than it takes
// to notice a restart, and have answered since the other set was registered. Only a new process judges by this, and only if it has reached
// no other servers before. It can wait, whereas one that has locked for long must not be stopped by another that was suspended, and still
// registers the servers of before. Callers hold mu.
func (r *registry) coexist(v *view, u use, now time.Time) bool {
	if now.Sub(r.began) > noticed || v.now-u.seen > (2*registerEvery).Microseconds() {
		return false
	}
	registered := v.sent.Add(-time.Duration(v.now-u.since) * time.Microsecond)
	for i, m := range r.own.Masters {
		if m.Up && (m.Was != "" || now.Sub(m.started) < noticed || !r.views[i].sent.After(registered)) {
			return false
		}
	}
	return true
}

// persists reports whether a difference has lasted for longer than it takes to notice a restart, with both sets still in use. A
// master that hasn't answered for as long is no witness of that. Callers hold mu.
func (r *registry) persists(about string, v *view, u use, now time.Time) bool {
	if v.now-u.seen > (2 * registerEvery).Microseconds() {
		delete(r.doubted, about)
		return false
	}
	if now.Sub(v.sent) > doubtTime {
		return false
	}
	d, ok := r.doubted[about]
	if !ok && len(r.doubted) > protocol.MaxSets {
		clear(r.doubted)
	}
	if now.Sub(d.last) > 2*registerEvery { // it is another one: in between, the sets were the same, or one was not in use
		d.since = now
	}
	d.last = now
	r.doubted[about] = d
	return now.Sub(d.since) > doubtTime
}

// doubt is a difference that may only be a restart which one process hasn't noticed yet.
type doubt struct{ since, last time.Time } // when it was seen first, and last

// wasFirst reports whether the other set was in use before ours, also as it was before its servers restarted. Where both came at
// about the same time, the answer must be the same on all masters: then the texts of the sets decide. Callers hold mu.
func (r *registry) wasFirst(v *view, u use) bool {
	text := r.text()
	i := slices.IndexFunc(v.uses, func(own use) bool { return own.text == text })
	if r.state != inUse || i < 0 {
		return true
	}
	earlier := func(theirs, ours int64) int {
		if max(theirs-ours, ours-theirs) <= doubtTime.Microseconds() {
			return 0
		}
		return cmp.Compare(theirs, ours)
	}
	return cmp.Or(earlier(v.firstSince(u.set), v.firstSince(&r.own)), earlier(u.since, v.uses[i].since), strings.Compare(u.text, text)) < 0
}

// firstSince returns since when a master knows a set, or what it was before its servers restarted.
func (v *view) firstSince(s *set) int64 {
	first := v.now
	for _, u := range v.uses {
		if u.set.succeeds(s) {
			first = min(first, u.since)
		}
	}
	return first
}

// decide moves the state on: conflict is a set that was here first, heard and told report whether a quorum has
// answered of late, and knows that our set is in use. Callers hold mu.
func (r *registry) decide(conflict *set, heard, told bool, now time.Time) {
	switch {
	case conflict != nil:
		if r.conflict.Load() == nil || r.state == announcing {
			select {
			case <-r.refused:
			default:
				defer close(r.refused) // behind the Store
			}
			r.conflict.Store(&conflictError{ours: r.own.String(), theirs: conflict.String()})
		}
		if r.state != waiting {
			r.state = waiting
			signal(r.again)
		}
	case r.state == waiting && heard:
		r.state, r.announcedAt = announcing, now
		signal(r.again)
	case r.state == announcing && told:
		r.state = inUse
		r.conflict.Store(nil)
	}
}

// logChange logs that the masters are being changed, and when the change is complete. Callers hold mu.
func (r *registry) logChange(other *set, heard bool) {
	switch {
	case other != nil && !r.changing:
		r.changing = true
		r.log(slog.LevelInfo, "another set of masters is in use: the masters are being changed, or the configurations differ", "its masters", other.String(), "our masters", r.own.String())
	case other == nil && r.changing && heard:
		r.changing = false
		r.log(slog.LevelInfo, "all processes have the same masters now, and no lock of another set is left: the next step of a change can be taken", "masters", r.own.String())
	}
}

// log schedules a log line for when mu is free. Callers hold mu.
func (r *registry) log(level slog.Level, text string, args ...any) {
	r.logs = append(r.logs, func() { r.logger.Log(context.Background(), level, text, args...) })
}

// logOnce logs an error, but only once for each thing that it is about. Callers hold mu.
func (r *registry) logOnce(about, text string, args ...any) {
	switch {
	case r.logged[about]:
		return
	case len(r.logged) > protocol.MaxSets:
		clear(r.logged)
	}
	r.logged[about] = true
	r.log(slog.LevelError, text, args...)
}
