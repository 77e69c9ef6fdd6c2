package middleware

import (
	"cmp"

	"github.com/caddy-redlock/caddy-redlock/middleware/internal/budget"
)

// DefaultBodyBudget is the size in bytes of the budget that is shared by all rules without one of their own.
const DefaultBodyBudget = 64 << 20

var defaultBudget = NewBudget(DefaultBodyBudget)

// Budget bounds how many bytes of request bodies are in memory at once, over all rules that share it. A body takes room as it arrives, and waits for
// room within its BodyTimeout; in a dry run it doesn't wait.
//
// A part of the budget is kept for bodies of up to 16 KiB, and no client takes more than three times as much as it leaves free for others. So a client
// that sends much, or slowly, keeps nobody out. Make a budget at least twice the largest MaxBody of its rules: a smaller one has no room for small
// bodies beside a large one.
type Budget struct{ bytes *budget.Budget }

// NewBudget returns a budget of size bytes. No rule that uses it may have a larger MaxBody.
func NewBudget(size int64) *Budget { return &Budget{budget.New(size)} }

func (b *Budget) usage() (used, size int64) { return cmp.Or(b, defaultBudget).bytes.Usage() }
