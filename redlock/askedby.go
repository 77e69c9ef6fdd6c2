package redlock

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"strings"

	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
)

type operatorKey struct{}

// maxOperator bounds the bytes of what AskedBy says: the masters keep it.
const maxOperator = 200

// AskedBy says who asks for a ForceUnlock with this context, in the words of the caller, such as a name and an address. The log
// of the holder has it, behind the instance of the process that was asked. What is longer than 200 bytes is cut.
func AskedBy(ctx context.Context, who string) context.Context {
	return context.WithValue(ctx, operatorKey{}, who)
}

// operator returns what the holder's log says of who released a lock by force.
func (l *Locker) operator(ctx context.Context) string {
	who := l.instance
	if name, _ := ctx.Value(operatorKey{}).(string); name != "" {
		who += ", asked by " + name
	}
	return strings.ToValidUTF8(who[:min(len(who), maxOperator)], "")
}

// KeyHash returns the beginning of the SHA-256 of a key, in hexadecimal digits. Log lines have it in place of the key, which may be
// personal data, so that what is said of one key can be found together. Who can guess a key can check the guess.
func KeyHash(key string) string {
	sum := sha256.Sum256([]byte(key))
	return hex.EncodeToString(sum[:6])
}

// lastWords are what the log says of a lock that was lost.
func (k *Lock) lastWords(cause error) []any {
	key := protocol.KeyOf(k.attempt.locker.prefix, k.gate.key)
	words := []any{"error", cause, "key_hash", KeyHash(key), "fence", k.Fence(), "since", k.since().UTC()}
	if label := k.caller.label; label != "" {
		words = append(words, "rule", label)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.by != "" {
		words = append(words, "by", k.by)
	}
	return words
}
