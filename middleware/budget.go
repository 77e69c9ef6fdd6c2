package middleware

import "github.com/caddy-redlock/caddy-redlock/middleware/internal/budget"

// DefaultBodyBudget is the size in bytes of the budget that is shared by all rules without one of their own.
const DefaultBodyBudget = 64 << 20

var defaultBudget = NewBudget(DefaultBodyBudget)

// Budget bounds the bytes of request bodies that are in memory at once, over all rules that share it. A body takes room as it
// arrives, whatever length it declares. If it finds none it waits, within its BodyTimeout; in a dry run it doesn't wait. A part of
// the budget is reserved for bodies up to 16 KiB, and no client takes more than three times what it leaves to others: clients that
// send much, or slowly, don't keep others out.
//
// A budget should be at least twice the largest MaxBody of its rules; a smaller one has no room for small bodies next to a large
// one.
type Budget struct{ bytes *budget.Budget }

// NewBudget returns a budget of so many bytes. No rule that uses it may have a larger MaxBody.
func NewBudget(size int64) *Budget { return &Budget{budget.New(size)} }

// DefaultBudget returns the budget that is shared by all rules without one of their own.
func DefaultBudget() *Budget { return defaultBudget }

// Usage returns how many bytes the bodies that are in memory take, and how many they may take.
func (b *Budget) Usage() (used, size int64) { return b.bytes.Usage() }
