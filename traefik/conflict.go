package traefik

import "time"

// judge decides, by what the masters know, whether this process may lock.
func (r *registry) judge() {
	now := time.Now()
	registered, heard := []time.Time{}, 0 // when our set was registered, the latest first; how many masters have answered lately
	var apart *set
	for _, v := range r.views {
		if v.sent.IsZero() || now.Sub(v.sent) > r.own.life() {
			continue
		}
		if v.inUse && r.state != waiting && (r.state == inUse || !v.sent.Before(r.tried)) {
			registered = append(registered, v.sent)
			for i := len(registered) - 1; i > 0 && registered[i].After(registered[i-1]); i-- {
				registered[i], registered[i-1] = registered[i-1], registered[i]
			}
		}
		if now.Sub(v.sent) < doubtTime {
			heard++
		}
		for _, u := range v.uses {
			if !r.metBy(v, u, now) && !u.set.Waits && r.first(v, u) {
				apart = u.set
			}
		}
	}
	quorum := r.l.quorum
	r.decide(apart, heard >= quorum, len(registered) >= quorum, now)
	if len(registered) >= quorum {
		life := r.own.life()
		r.registered = registered[quorum-1].Add(life - drift(life))
	}
}

// metBy reports whether each majority of our set shares a master with each of another set, or may do so.
func (r *registry) metBy(v *view, u *use, now time.Time) bool {
	if r.own.same(u.set, false) || r.own.same(u.set, true) && !r.isReal(v, u, now) {
		return true
	}
	return r.own.meets(u.set, true) && (r.own.meets(u.set, false) || !r.isReal(v, u, now))
}

// isReal reports whether a difference is more than a restart that one process hasn't noticed yet.
func (r *registry) isReal(v *view, u *use, now time.Time) bool {
	return r.lasts(v, u, now) || r.coexist(v, u, now)
}

// coexist reports that our servers and those of another set have been there side by side. Only a new process judges by this, and
// only if it has reached no other servers before, as in package redlock.
func (r *registry) coexist(v *view, u *use, now time.Time) bool {
	if now.Sub(r.l.began) > noticed || v.now-u.seen > int64(2*registerEvery/time.Microsecond) {
		return false
	}
	since := v.sent.Add(-time.Duration(v.now-u.since) * time.Microsecond)
	for i := 0; i < len(r.own.Masters); i++ {
		m := &r.own.Masters[i]
		if m.Up && (m.Was != "" || now.Sub(m.started) < noticed || !r.views[i].sent.After(since)) {
			return false
		}
	}
	return true
}

// lasts reports whether a doubt about a set is so old that its processes must have noticed a restart, or have ended, and yet the set
// is in use. A master that hasn't answered for as long is no witness of that.
func (r *registry) lasts(v *view, u *use, now time.Time) bool {
	if v.now-u.seen > int64(2*registerEvery/time.Microsecond) {
		delete(r.doubted, u.text)
		return false
	}
	if now.Sub(v.sent) > doubtTime {
		return false
	}
	d := r.doubted[u.text]
	if d == nil || now.Sub(d.last) > 2*registerEvery { // in between, the sets were the same, or one was not in use
		if len(r.doubted) > maxSets {
			r.doubted = map[string]*doubt{}
		}
		d = &doubt{since: now}
		r.doubted[u.text] = d
	}
	d.last = now
	return now.Sub(d.since) > doubtTime
}

// doubt is a difference that may only be a restart which one process hasn't noticed yet: when it was seen first, and last.
type doubt struct {
	since, last time.Time
}

// first reports whether another set was in use before ours, also as it was before its servers restarted. If both came at about the
// same time, all masters decide alike.
func (r *registry) first(v *view, u *use) bool {
	text := r.text()
	if r.state != inUse {
		return true
	}
	for _, own := range v.uses {
		if own.text != text {
			continue
		}
		if theirs, ours := v.firstSince(u.set), v.firstSince(&r.own); differ(theirs, ours) {
			return theirs < ours
		}
		if differ(u.since, own.since) {
			return u.since < own.since
		}
		return u.text < text
	}
	return true
}

// differ reports whether two times of a master are so far apart that every process sees them in the same order.
func differ(a, b int64) bool {
	return a-b > int64(doubtTime/time.Microsecond) || b-a > int64(doubtTime/time.Microsecond)
}

// firstSince returns since when a master knows a set, or what it was before its servers restarted.
func (v *view) firstSince(s *set) int64 {
	first := v.now
	for _, u := range v.uses {
		if u.set.succeeds(s) && u.since < first {
			first = u.since
		}
	}
	return first
}

// decide lets the process lock, or wait.
func (r *registry) decide(apart *set, heard, registered bool, now time.Time) {
	switch {
	case apart != nil:
		if r.refused == "" || r.state == trying {
			r.refused = "another process that was here first has other masters, so that two could hold a lock: its masters are " +
				apart.names() + "; ours are " + r.own.names() + "; give all the same, or change one at a time"
			r.l.note(r.refused)
		}
		if r.state != waiting {
			r.state = waiting
			r.due = now
		}
	case r.state == waiting && heard:
		r.state = trying
		r.tried = now
		r.due = now
	case r.state == trying && registered:
		r.state = inUse
		r.refused = ""
	}
}
