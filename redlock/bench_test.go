package redlock_test

import (
	"testing"

	"github.com/caddy-redlock/caddy-redlock/redlock"
)

// BenchmarkLockUnlock measures what the lock itself costs, without a network.
func BenchmarkLockUnlock(b *testing.B) {
	benchmarkLock(b, newLocker(b, []string{"memory://1", "memory://2", "memory://3"}))
}

// BenchmarkRedisLockUnlock measures it on three real servers.
func BenchmarkRedisLockUnlock(b *testing.B) {
	l, _ := onServers(b, 3)
	benchmarkLock(b, l)
}

func benchmarkLock(b *testing.B, l *redlock.Locker) {
	lockUnlock(b, l, "key") // the connections are there
	b.ReportAllocs()
	for b.Loop() {
		lock, err := l.TryLock(b.Context(), "key")
		if err != nil {
			b.Fatal(err)
		}
		mustUnlock(b, lock)
	}
}

// BenchmarkPass measures how a lock goes from hand to hand in one process, on three real servers.
func BenchmarkPass(b *testing.B) {
	l, _ := onServers(b, 3)
	lockUnlock(b, l, "key")
	b.ReportAllocs()
	b.SetParallelism(16)
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			lock, err := l.Lock(b.Context(), "key")
			if err == nil {
				err = lock.Unlock()
			}
			if err != nil {
				b.Error(err)
				return
			}
		}
	})
}
