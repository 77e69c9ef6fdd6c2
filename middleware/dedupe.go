package middleware

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock"
)

// claimMaxHold is longer than any request holds its keys: the claim ends with it, or with them.
const claimMaxHold = 365 * 24 * time.Hour

// ParseDedupe reads the template of the ID of a delivery, as ParseTemplate does. An ID has one value:
// {body.items[].id} is none.
func ParseDedupe(text string, compile func(name string) (KeyFunc, error)) (KeyFunc, error) {
	t, err := ParseTemplate(text, compile)
	if err != nil {
		return nil, fmt.Errorf("dedupe: %w", err)
	}
	if t.each >= 0 {
		return nil, fmt.Errorf("dedupe: {%s} may have several values, and a delivery has one ID; name an element, such as {body.items.0.id}", t.parts[t.each].name)
	}
	return t.Key, nil
}

// duplicateError says that the same delivery waits or runs already.
type duplicateError struct{ held *redlock.HeldError }

func (e *duplicateError) Error() string { return "the same delivery is in progress" }

// claim takes the lock of a delivery, in all processes: who can't have it comes second. It is held
// until done is called, beside the lock of the keys.
func (rule *Rule) claim(ctx context.Context, locker *redlock.Locker, keys []string, id string) (done func(), err error) {
	if id == "" {
		return func() {}, nil
	}
	opts := append(rule.lockOptions(), redlock.WithMaxHold(claimMaxHold))
	lock, err := locker.TryLock(ctx, claimKey(keys, id), opts...)
	var held *redlock.HeldError
	if errors.As(err, &held) {
		return nil, &duplicateError{held}
	}
	if err != nil {
		return nil, err
	}
	return sync.OnceFunc(func() { rule.unlock(lock) }), nil
}

// freeWith frees a claim when the lock on the keys is lost: it is not to outlast it, where the request
// is stuck.
func freeWith(lock *redlock.Lock, claim func()) {
	context.AfterFunc(lock.Context(), func() {
		if context.Cause(lock.Context()) != context.Canceled { // that is Unlock: then the claim is freed behind it
			claim()
		}
	})
}

func claimKey(keys []string, id string) string {
	sum := sha256.Sum256([]byte(strings.Join(append(keys[:len(keys):len(keys)], id), "\x00")))
	return "dedupe:" + hex.EncodeToString(sum[:])
}
