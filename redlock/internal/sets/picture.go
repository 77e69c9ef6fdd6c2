package sets

import (
	"cmp"
	"fmt"
	"strings"
	"time"
)

// picture is what the masters say together.
type picture struct {
	fresh   int                  // how many masters have answered of late
	other   *set                 // one that is in use or claimed
	used    *set                 // an incompatible one that was in use when a master was last heard
	elder   *set                 // an incompatible one that has been in use for longer than ours
	claimed *set                 // an incompatible one that is claimed
	rival   *set                 // an incompatible one whose claim goes before ours
	joins   bool                 // a quorum of the masters knows our set as in use
	follows bool                 // a quorum of its own knows a compatible set as in use
	differs map[string]differing // by their text: those of processes that are there now, with other masters or another max TTL
	settled bool                 // the masters' silence means something: all remember for long enough, or none does, as at the beginning; and none has just restarted
}

func (j *Judge) picture(now time.Time) (p picture) {
	using := make(map[string]int) // compatible sets, by their text, on how many masters they are in use
	young, answered, same, guarded := 0, 0, 0, false
	p.differs = make(map[string]differing)
	for i := range j.views {
		v := &j.views[i]
		guarded = guarded || v.absent == Guarded
		if v.sent.IsZero() {
			continue
		}
		age := now.Sub(v.sent)
		if age < doubtTime {
			p.fresh++
		}
		if v.born > 0 && !v.told.IsZero() {
			answered++
			if v.age() < settled {
				young++
			}
		}
		known := false
		for _, u := range v.uses {
			known = j.weigh(&p, v, u, now, using) || known
		}
		if known {
			same++
		}
		for _, u := range v.kept {
			if j.compatible(v, u, now) == nil {
				continue
			}
			p.used = u.set
			if age < j.own.life() {
				p.other = u.set
			}
		}
	}
	p.joins = same >= j.quorum
	p.settled = !guarded && (young == 0 || young == answered && !j.own.Waited)
	for text, n := range using {
		p.follows = p.follows || n >= j.parsed[text].quorum()
	}
	return p
}

// weigh adds what a master says of one set, and reports whether that is ours, and in use.
func (j *Judge) weigh(p *picture, v *view, u use, now time.Time, using map[string]int) (ours bool) {
	late := now.Sub(v.sent) > j.own.life()
	if !late {
		j.compareTTL(v, u, now)
	}
	same := j.same(v, u, now)
	if now.Sub(v.sent) <= doubtTime && v.now-u.seen <= (2*Every).Microseconds() && (!same || u.set.MaxTTL != j.own.MaxTTL) {
		p.differs[u.text] = differing{u.set, !same}
	}
	if same {
		return u.set.State == Uses && !late
	}
	if !late && u.set.State != Waits {
		p.other = u.set
	}
	incompatible := j.compatible(v, u, now)
	if incompatible == nil {
		if u.set.State == Uses && !late {
			using[u.text]++
		}
		return false
	}
	switch u.set.State {
	case Uses:
		p.used = u.set // however long ago: its silence now may mean anything
		if !late && u.since < v.at(j.since) {
			p.elder = u.set
		}
	case Claims:
		p.claimed = u.set
		if cmp.Or(cmp.Compare(rank(u.set), rank(&j.own)), strings.Compare(u.text, j.own.text())) < 0 {
			p.rival = u.set
		}
	}
	return false
}

// rank says who goes first of two that claim.
func rank(s *set) int {
	if s.Waited {
		return 1
	}
	return 0
}

// compatible returns nil for a set beside which ours may be in use, and the set otherwise, after noting that.
func (j *Judge) compatible(v *view, u use, now time.Time) *set {
	if j.same(v, u, now) || j.own.meets(u.set, true) && (j.own.meets(u.set, false) || !j.isReal(v, u, now)) {
		return nil
	}
	j.noteOnce(u.set.String(), "another process has other masters, and both could hold the same lock: the process that was here first goes on, the other waits until it is gone (docs/operations.md)",
		"its masters", u.set.String(), "our masters", j.own.String(), "process", u.set.process())
	return u.set
}

// compareTTL notes a max TTL of another process that a restart guard is too short for.
func (j *Judge) compareTTL(v *view, u use, now time.Time) {
	if u.set.MaxTTL > j.own.Covers || j.own.MaxTTL > u.set.Covers && j.persists("ttl "+u.text, v, u, now) {
		j.noteOnce(fmt.Sprint("ttl ", u.set.MaxTTL, u.set.Covers), "another process has a longer max ttl than this one's restart guard covers, or the other way round: a restarted master may forget a lock that is still valid (docs/operations.md)",
			"its max ttl", ms(u.set.MaxTTL), "its guards cover", ms(u.set.Covers), "our max ttl", ms(j.own.MaxTTL), "ours cover", ms(j.own.Covers), "process", u.set.process())
	}
}
