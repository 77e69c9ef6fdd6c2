package redlock

import "context"

// Operator is package inspect, which imports this one: so a test outside of it has set it.
var Operator struct {
	// Holder returns who holds a slot of a key: the part of its token that is shown, the fence that one of its masters has stored, and the lock's own.
	Holder func(ctx context.Context, l *Locker, key string, slot int) (shown string, stored, fence uint64)
	Force  func(ctx context.Context, l *Locker, key string, slot int, fence uint64) error
}
