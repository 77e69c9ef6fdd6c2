package middleware

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/caddy-redlock/caddy-redlock/redlock"
)

// ParseDedupe reads the template of the ID of a delivery, as ParseTemplate does. An ID has a single value, so that
// {body.items[].id} is an error.
func ParseDedupe(text string, compile PlaceholderFunc) (KeyFunc, error) {
	t, err := ParseTemplate(text, compile)
	if err != nil {
		return nil, fmt.Errorf("dedupe: %w", err)
	}
	if t.Global() {
		return nil, fmt.Errorf("dedupe: %q is the same for all deliveries; name the sender's ID, such as {header.X-GitHub-Delivery}", text)
	}
	if t.each >= 0 {
		return nil, fmt.Errorf("dedupe: {%s} may have several values, and a delivery has one ID; name an element, such as {body.items.0.id}", t.parts[t.each].name)
	}
	return t.Key, nil
}

// claim takes the lock on the delivery, which all processes share: the request that doesn't get it comes second. It is held
// besides the lock on the keys, until releaseClaim is called.
func (s *serving) claim() error {
	opts := append(s.rule.lockOptions(), redlock.WithMaxHold(0)) // it ends with the request, or with its lock
	lock, err := s.turn.locker.TryLock(s.r.Context(), DeliveryKey(s.turn.keys, s.delivery, ""), opts...)
	var held *redlock.HeldError
	if errors.As(err, &held) {
		return &duplicateError{held}
	}
	if err != nil {
		return err
	}
	s.releaseClaim = sync.OnceFunc(func() { s.unlock(lock) })
	return nil
}

// releaseWith releases a claim when the lock on the keys is lost, so that the claim doesn't outlast it if the request is stuck.
func releaseWith(lock *redlock.Lock, releaseClaim func()) {
	context.AfterFunc(lock.Context(), func() {
		if context.Cause(lock.Context()) != context.Canceled { // Unlock was not called, after which the claim is released too
			releaseClaim()
		}
	})
}

// DeliveryKey returns the key of a delivery, which is locked while the delivery is served: that of the keys of its request,
// in any order, of its ID, and of who has sent it if the rule asks for that (otherwise scope is empty). All
// three are hashed, each with its length, so that no two deliveries have the same key.
func DeliveryKey(keys []string, id, scope string) string {
	if !slices.IsSorted(keys) {
		keys = slices.Sorted(slices.Values(keys))
	}
	var parts []byte
	for _, part := range append(keys[:len(keys):len(keys)], id, scope) {
		parts = binary.AppendUvarint(parts, uint64(len(part)))
		parts = append(parts, part...)
	}
	sum := sha256.Sum256(parts)
	return "dedupe:" + hex.EncodeToString(sum[:])
}
