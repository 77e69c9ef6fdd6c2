package redlock

import (
	"context"
	"time"
)

// waitLimit is how long a call waits for other holders. It makes its timer only when the call begins to wait, which most calls
// never do.
type waitLimit struct {
	ctx    context.Context // of the call
	until  time.Time       // zero: until ctx ends
	wait   context.Context
	cancel context.CancelFunc
}

// context returns a context that ends when the call must not wait any longer.
func (w *waitLimit) context() context.Context {
	switch {
	case w.until.IsZero():
		return w.ctx
	case w.wait == nil:
		w.wait, w.cancel = context.WithDeadline(w.ctx, w.until)
	}
	return w.wait
}

func (w *waitLimit) end() {
	if w.cancel != nil {
		w.cancel()
	}
}
