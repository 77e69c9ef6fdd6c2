package middleware

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"strings"

	"github.com/caddy-redlock/caddy-redlock/redlock"
)

// duplicateError says that the same delivery waits or runs already.
type duplicateError struct{ held *redlock.HeldError }

func (e *duplicateError) Error() string { return "the same delivery is in progress" }

// claim takes the lock of a delivery, in all processes: who can't have it comes second. It is held
// until done is called, beside the lock of the keys.
func (rule *Rule) claim(ctx context.Context, locker *redlock.Locker, keys []string, id string) (done func(), err error) {
	if id == "" {
		return func() {}, nil
	}
	opts := rule.lockOptions()
	opts = append(opts, redlock.WithMaxHold(rule.Wait+cmp.Or(rule.MaxHold, redlock.DefaultMaxHold)))
	lock, err := locker.TryLock(ctx, claimKey(keys, id), opts...)
	var held *redlock.HeldError
	if errors.As(err, &held) {
		return nil, &duplicateError{held}
	}
	if err != nil {
		return nil, err
	}
	return func() { rule.unlock(lock) }, nil
}

func claimKey(keys []string, id string) string {
	sum := sha256.Sum256([]byte(strings.Join(append(keys[:len(keys):len(keys)], id), "\x00")))
	return "dedupe:" + hex.EncodeToString(sum[:])
}
