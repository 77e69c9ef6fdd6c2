package redlock

import "testing"

// BenchmarkGate measures the way through a gate at which nobody waits.
func BenchmarkGate(b *testing.B) {
	g := gates{byKey: make(map[string]*gate)}
	b.ReportAllocs()
	for b.Loop() {
		c := caller{key: "redlock:{order:42}"}
		if head, _, err := g.enter(&c, 1); !head || err != nil {
			b.Fatal("not the head")
		}
		g.leave(c.gate)
	}
}
