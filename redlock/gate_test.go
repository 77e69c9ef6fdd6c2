package redlock

import "testing"

// BenchmarkGate measures entering and leaving a gate at which nobody waits.
func BenchmarkGate(b *testing.B) {
	g := gates{byKey: make(map[string]*gate)}
	b.ReportAllocs()
	for b.Loop() {
		c := &call{}
		c.places = append(c.roomForPlaces[:0], &c.roomForPlace)
		c.roomForPlace.call, c.roomForPlace.key = c, "redlock:{order:42}"
		if blocked, _, err := g.enter(c, true, false); blocked != nil || err != nil {
			b.Fatal("not the head")
		}
		g.keepOnly(nil, c)
	}
}
