package sets

import (
	"encoding/binary"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
)

// sinces returns since when sets are in use, as anybody knows, in their order.
func (s *state) sinces() (all []int64) {
	for m := range s.servers {
		for _, u := range s.servers[m].Uses {
			all = append(all, u.Since)
		}
	}
	for i := range s.procs {
		if j := s.procs[i].judge; j != nil {
			all = append(all, j.since.UnixMicro())
			for m := range j.views {
				for _, u := range j.views[m].uses {
					all = append(all, u.since)
				}
			}
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// key is what matters of a state: all times as ages, in steps; of since when sets are in use only the order.
func (e *explorer) key(s *state) string {
	b := make([]byte, 0, 512)
	age := func(t time.Time) {
		d := min(s.now.Sub(t), giant)
		b = binary.AppendVarint(b, int64((d+tick/2)/tick))
	}
	all := s.sinces()
	since := func(us int64) {
		n, _ := slices.BinarySearch(all, us)
		b = append(b, byte(n))
	}
	texts := make(map[string]int)
	text := func(t string) {
		n, ok := texts[t]
		if !ok {
			n = len(texts)
			texts[t] = n
			b = append(b, t...)
		}
		b = append(b, byte(n))
	}
	at := func(us int64) { age(time.UnixMicro(us)) }
	flag := func(f bool) { b = append(b, map[bool]byte{true: 1}[f]) }
	uses := func(us []use) {
		for _, u := range slices.SortedFunc(slices.Values(us), func(a, b use) int { return strings.Compare(a.text, b.text) }) {
			text(u.text)
			since(u.since)
			at(u.seen)
		}
		b = append(b, 0xff)
	}
	for m := range s.servers {
		v := &s.servers[m]
		flag(v.hung)
		age(v.guard)
		at(v.Born)
		age(s.forgot[m])
		for _, t := range slices.Sorted(maps.Keys(v.Uses)) {
			if u := v.Uses[t]; s.now.Sub(time.UnixMicro(u.Seen)) <= life {
				text(t)
				since(u.Since)
				at(u.Seen)
			}
		}
		b = append(b, 0xff)
	}
	for i := range s.procs {
		p := &s.procs[i]
		b = append(b, p.cut, byte(p.stuck), byte(len(p.inbox)), byte(len(p.sent)))
		flag(p.suspended)
		flag(p.waited)
		age(p.locks)
		for _, t := range p.reached {
			age(t)
		}
		for _, a := range append(slices.Clone(p.inbox), p.sent...) {
			b = append(b, byte(a.master))
			text(a.g.Text)
			age(a.g.sent)
			lines := strings.Split(a.reply.Lines, "\n")
			slices.Sort(lines)
			for _, line := range lines {
				_, rest, _ := strings.Cut(line, " ")
				seen, t, _ := strings.Cut(rest, " ")
				us, _ := strconv.ParseInt(seen, 10, 64)
				at(us)
				text(t)
			}
		}
		if p.judge == nil {
			b = append(b, 0xfe)
			continue
		}
		j := p.judge
		b = append(b, j.own.text()...)
		if j.state == Uses {
			since(j.since.UnixMicro())
		}
		if j.state == Claims {
			age(j.claimed)
			age(j.looked)
		}
		for m := range j.views {
			v := &j.views[m]
			age(v.sent)
			at(v.now)
			at(v.born)
			age(v.told)
			b = append(b, byte(v.absent))
			text(v.text)
			uses(v.uses)
			uses(v.kept)
		}
	}
	for _, set := range e.masters {
		age(s.used[set])
		age(s.lasted[set])
	}
	for _, n := range s.left {
		b = append(b, byte(n))
	}
	return string(append(b, byte(s.both), byte(s.none), byte(s.steps)))
}
