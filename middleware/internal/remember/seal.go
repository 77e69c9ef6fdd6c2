package remember

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/sha256"
	"errors"
	"fmt"
)

const (
	keySize  = 32
	idSize   = 4
	sealSize = 12 + 16 // a nonce before the text, and a tag behind it
)

// Sealer encrypts responses with AES-256-GCM.
//
// Each response has an encryption key of its own, derived from a configured key and from the lock key under which the response is stored. So a
// configured key can encrypt any number of responses. With random nonces, a single encryption key could encrypt only 2^32 responses.
type Sealer struct{ keys []sealingKey }

// sealingKey keeps its secret in a closure, so that no log shows it, however a Sealer is printed.
type sealingKey struct {
	id   [idSize]byte
	aead func(storedUnder string) (cipher.AEAD, error)
}

// NewSealer returns a Sealer with keys of 32 bytes each, which should be random. It encrypts with the first key, and decrypts with all of
// them.
func NewSealer(keys ...[]byte) (*Sealer, error) {
	if len(keys) == 0 {
		return nil, errors.New("there is no key to encrypt remembered responses with")
	}
	s := new(Sealer)
	for i, secret := range keys {
		if len(secret) != keySize {
			return nil, fmt.Errorf("key %d for remembered responses has %d bytes: must have %d", i+1, len(secret), keySize)
		}
		k := newSealingKey(bytes.Clone(secret))
		if _, known := s.key(k.id); known {
			return nil, fmt.Errorf("key %d for remembered responses is one of those before it, or looks like it: leave it out, or make a new one", i+1)
		}
		s.keys = append(s.keys, k)
	}
	return s, nil
}

// newSealingKey derives an ID and a function for ciphers from a secret. The constant texts in both derivations must never change, or stored responses
// could not be read any more.
func newSealingKey(secret []byte) sealingKey {
	hash := sha256.Sum256(append([]byte("ID of a key for remembered answers:"), secret...))
	return sealingKey{
		id: [idSize]byte(hash[:idSize]),
		aead: func(storedUnder string) (cipher.AEAD, error) {
			derived, err := hkdf.Expand(sha256.New, secret, "remembered answer:"+storedUnder, keySize)
			if err != nil {
				return nil, err
			}
			block, err := aes.NewCipher(derived)
			if err != nil {
				return nil, err
			}
			return cipher.NewGCMWithRandomNonce(block)
		},
	}
}

func (s *Sealer) key(id [idSize]byte) (sealingKey, bool) {
	for _, k := range s.keys {
		if k.id == id {
			return k, true
		}
	}
	return sealingKey{}, false
}

// seal returns the version, the flags, the ID of the key, and the encrypted payload.
func (s *Sealer) seal(version, flags byte, payload []byte, storedUnder string) ([]byte, error) {
	k := s.keys[0]
	aead, err := k.aead(storedUnder)
	if err != nil {
		return nil, fmt.Errorf("remembered response can't be encrypted: %w", err)
	}
	data := make([]byte, 0, 2+idSize+sealSize+len(payload))
	data = append(data, version, flags)
	data = append(data, k.id[:]...)
	return aead.Seal(data, nil, payload, authenticated(version, flags, storedUnder)), nil
}

// open returns the payload that seal has encrypted. The caller has already read the version and the flags.
func (s *Sealer) open(version, flags byte, sealed []byte, storedUnder string) ([]byte, error) {
	if len(sealed) < idSize {
		return nil, errDamaged
	}
	k, known := s.key([idSize]byte(sealed[:idSize]))
	if !known {
		return nil, fmt.Errorf("%w: the key that it is encrypted with is none of those here", ErrUnreadable)
	}
	aead, err := k.aead(storedUnder)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnreadable, err)
	}
	payload, err := aead.Open(nil, nil, sealed[idSize:], authenticated(version, flags, storedUnder))
	if err != nil {
		return nil, fmt.Errorf("%w: it is damaged, or was stored under another key", ErrUnreadable)
	}
	return payload, nil
}

// authenticated returns the data that isn't encrypted, but must not have changed.
func authenticated(version, flags byte, storedUnder string) []byte {
	return append([]byte{version, flags}, storedUnder...)
}
