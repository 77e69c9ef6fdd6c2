package middleware

import "github.com/caddy-redlock/caddy-redlock/middleware/internal/answer"

// Sealer encrypts the answers that are remembered, so that the masters can't read them.
type Sealer struct{ sealer *answer.Sealer }

// NewSealer returns a Sealer with AES-256-GCM. Each key has 32 bytes; the first encrypts, and all decrypt, so that a key can be
// replaced: first add the new one everywhere as the second, then make it the first, and remove the old one when the last answer
// that it has encrypted is forgotten. Its errors don't show the keys.
func NewSealer(keys ...[]byte) (*Sealer, error) {
	sealer, err := answer.NewSealer(keys...)
	if err != nil {
		return nil, err
	}
	return &Sealer{sealer}, nil
}
