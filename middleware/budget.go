package middleware

import (
	"context"

	"golang.org/x/sync/semaphore"
)

// DefaultBodyBudget is the size in bytes of the budget that rules share which are given no other.
const DefaultBodyBudget = 64 << 20

var defaultBudget = NewBudget(DefaultBodyBudget)

// Budget bounds the bytes of request bodies that are in memory at once, over all rules that share
// it. A request whose body finds no room waits for it, as long as its body may take to arrive; in a dry
// run it doesn't.
type Budget struct {
	size int64
	free *semaphore.Weighted
}

// NewBudget makes a budget of so many bytes. No rule that uses it may have a larger MaxBody.
func NewBudget(size int64) *Budget {
	return &Budget{size: size, free: semaphore.NewWeighted(size)}
}

// portion is what a body has of a budget.
type portion struct {
	budget *Budget
	bytes  int64
}

func (b *body) held() (bytes int64) {
	for _, c := range b.portions {
		bytes += c.bytes
	}
	return bytes
}

// take waits until ctx ends for room, with what the body has already. A dry run doesn't wait.
func (b *body) take(ctx context.Context, room int64) error {
	more := room - b.held()
	if more <= 0 {
		return nil
	}
	if b.rule.DryRun && !b.budget.free.TryAcquire(more) || !b.rule.DryRun && b.budget.free.Acquire(ctx, more) != nil {
		return errBodyBudget
	}
	b.portions = append(b.portions, portion{b.budget, more})
	return nil
}

// giveBack gives back what is above so many bytes.
func (b *body) giveBack(keep int64) {
	for over := b.held() - keep; over > 0 && len(b.portions) > 0; {
		last := &b.portions[len(b.portions)-1]
		bytes := min(over, last.bytes)
		last.budget.free.Release(bytes)
		if last.bytes -= bytes; last.bytes == 0 {
			b.portions = b.portions[:len(b.portions)-1]
		}
		over -= bytes
	}
}
