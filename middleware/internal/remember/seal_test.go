package remember_test

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/caddy-redlock/caddy-redlock/middleware/internal/remember"
)

func TestRotation(t *testing.T) {
	t.Parallel()
	first, second, third := newKey(), newKey(), newKey()
	old := encode(t, payment(), newSealer(t, first))
	rotated := newSealer(t, second, third, first)
	if !equal(decode(t, old, rotated), payment()) {
		t.Error("the former key doesn't decrypt")
	}
	fresh := encode(t, payment(), rotated)
	if !equal(decode(t, fresh, newSealer(t, second)), payment()) {
		t.Error("the first key has not encrypted")
	}
}

func TestSealedIsUnreadable(t *testing.T) {
	t.Parallel()
	sealer := newSealer(t, newKey())
	sealed, plain := encode(t, payment(), sealer), encode(t, payment(), nil)
	for name, c := range map[string]struct {
		data   []byte
		sealer *remember.Sealer
		key    string
		says   string
	}{
		"without a key":       {sealed, nil, storedUnder, "it is encrypted, and there is no key"},
		"another key":         {sealed, newSealer(t, newKey()), storedUnder, "none of those here"},
		"stored elsewhere":    {sealed, sealer, storedUnder + "2", "was stored under another key"},
		"not encrypted":       {plain, sealer, storedUnder, "not encrypted"},
		"of another version":  {append([]byte{9}, sealed[1:]...), sealer, storedUnder, "its version is 9"},
		"cut off after flags": {sealed[:2], sealer, storedUnder, "damaged"},
	} {
		got, err := remember.Decode(c.data, c.sealer, c.key)
		if got != nil || !errors.Is(err, remember.ErrUnreadable) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
		if errors.Is(err, remember.ErrNotSealed) != (name == "not encrypted") {
			t.Errorf("%s: whether it is encrypted is wrong in %v", name, err)
		}
	}
	for _, secret := range []string{"captured", "Content-Type", "payments"} {
		if bytes.Contains(sealed, []byte(secret)) {
			t.Errorf("%q can be read", secret)
		}
	}
}

func TestWrongKeys(t *testing.T) {
	t.Parallel()
	key := newKey()
	for name, keys := range map[string][][]byte{
		"none":       nil,
		"short":      {key, key[:31]},
		"long":       {append(key[:31:31], 1, 2)},
		"hex":        {[]byte(hex.EncodeToString(key))},
		"empty":      {{}},
		"same twice": {key, newKey(), bytes.Clone(key)},
	} {
		s, err := remember.NewSealer(keys...)
		if s != nil || err == nil {
			t.Errorf("%s: no error", name)
			continue
		}
		requireHidden(t, key, err.Error())
	}
}

func TestKeysAreNotPrinted(t *testing.T) {
	t.Parallel()
	key := newKey()
	s := newSealer(t, key)
	requireHidden(t, key, fmt.Sprintf("%v %+v %#v %v %#v", s, s, s, *s, *s))
	_, err := remember.Decode(encode(t, payment(), s), newSealer(t, newKey()), storedUnder)
	requireHidden(t, key, err.Error())
}

// A key that changes after NewSealer is another one, and not the Sealer's.
func TestKeysAreCopied(t *testing.T) {
	t.Parallel()
	key := newKey()
	s := newSealer(t, key)
	before := bytes.Clone(key)
	clear(key)
	if !equal(decode(t, encode(t, payment(), s), newSealer(t, before)), payment()) {
		t.Error("another response")
	}
}

func requireHidden(t *testing.T, key []byte, text string) {
	t.Helper()
	for i := 0; i+4 <= len(key); i++ {
		part := key[i : i+4]
		for _, form := range []string{string(part), hex.EncodeToString(part), strings.Trim(fmt.Sprint(part), "[]"), strings.Trim(fmt.Sprintf("%#v", part), "[]byte{}")} {
			if strings.Contains(text, form) {
				t.Errorf("bytes of the key are in %q", text)
				return
			}
		}
	}
}
