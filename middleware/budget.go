package middleware

import (
	"context"

	"golang.org/x/sync/semaphore"
)

// DefaultBodyBudget is the size in bytes of the budget that rules share which are given no other.
const DefaultBodyBudget = 64 << 20

var defaultBudget = NewBudget(DefaultBodyBudget)

// Budget bounds the bytes of request bodies that are in memory at once, over all rules that share
// it. A request whose body finds no room waits for it, as long as its body may take to arrive.
type Budget struct {
	size int64
	free *semaphore.Weighted
}

// NewBudget makes a budget of so many bytes. No rule that uses it may have a larger MaxBody.
func NewBudget(size int64) *Budget {
	return &Budget{size: size, free: semaphore.NewWeighted(size)}
}

// take waits for room until ctx ends.
func (b *Budget) take(ctx context.Context, bytes int64) error { return b.free.Acquire(ctx, bytes) }

func (b *Budget) give(bytes int64) { b.free.Release(bytes) }
