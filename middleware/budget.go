package middleware

import (
	"cmp"

	"github.com/caddy-redlock/caddy-redlock/middleware/internal/budget"
)

// DefaultBodyBudget is the size in bytes of the budget that is shared by all rules without one of their own.
const DefaultBodyBudget = 64 << 20

var defaultBudget = NewBudget(DefaultBodyBudget)

// Budget bounds how many bytes of request bodies are in memory at once, over all rules that share the budget. A body takes room as it arrives,
// whatever length it declares. If there is no room, the body waits for room, within its BodyTimeout. In a dry run it doesn't wait. A part of the
// budget is reserved for bodies of up to 16 KiB, and no client takes more than three times as much as it leaves free for others. So a client that
// sends much, or slowly, doesn't keep others out.
//
// A budget should be at least twice the largest MaxBody of its rules. A smaller budget has no room for small bodies beside a large one.
type Budget struct{ bytes *budget.Budget }

// NewBudget returns a budget of size bytes. No rule that uses it may have a larger MaxBody.
func NewBudget(size int64) *Budget { return &Budget{budget.New(size)} }

func (b *Budget) usage() (used, size int64) { return cmp.Or(b, defaultBudget).bytes.Usage() }
