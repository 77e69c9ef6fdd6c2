package redlock_test

import "testing"

// BenchmarkLockUnlock measures what the lock itself costs, without a network.
func BenchmarkLockUnlock(b *testing.B) {
	l := newLocker(b, []string{"memory://1", "memory://2", "memory://3"})
	b.ReportAllocs()
	for b.Loop() {
		lock, err := l.TryLock(b.Context(), "key")
		if err != nil {
			b.Fatal(err)
		}
		mustUnlock(b, lock)
	}
}
