package redlock

import "testing"

// BenchmarkGate measures entering and leaving a gate at which nobody waits.
func BenchmarkGate(b *testing.B) {
	g := gates{byKey: make(map[string]*gate)}
	b.ReportAllocs()
	for b.Loop() {
		c := caller{key: "redlock:{order:42}"}
		if head, _, err := g.enter(&c); !head || err != nil {
			b.Fatal("not the head")
		}
		g.leave(c.gate)
	}
}
