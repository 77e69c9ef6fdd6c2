package redlock

import "testing"

// BenchmarkGate measures entering and leaving a gate at which nobody waits.
func BenchmarkGate(b *testing.B) {
	g := gates{byKey: make(map[string]*gate)}
	b.ReportAllocs()
	var k Lock
	for b.Loop() {
		c := caller{key: "redlock:{order:42}"}
		if blocked, _, err := g.enter([]*caller{&c}, true); blocked != nil || err != nil {
			b.Fatal("not the head")
		}
		k.gate, k.caller = c.gate, &c
		g.leave(&k)
	}
}
