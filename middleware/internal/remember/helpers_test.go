package remember_test

import (
	"crypto/rand"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"testing"

	"github.com/caddy-redlock/caddy-redlock/middleware/internal/remember"
)

const storedUnder = "locks:{dedupe:4f2a}:result"

func newKey() []byte {
	key := make([]byte, 32)
	_, _ = rand.Read(key) // never fails
	return key
}

func newSealer(t testing.TB, keys ...[]byte) *remember.Sealer {
	t.Helper()
	s, err := remember.NewSealer(keys...)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func encode(t testing.TB, a *remember.Response, s *remember.Sealer) []byte {
	t.Helper()
	data, err := a.Encode(s, storedUnder)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func decode(t testing.TB, data []byte, s *remember.Sealer) *remember.Response {
	t.Helper()
	a, err := remember.Decode(data, s, storedUnder)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// equal reports whether two responses are the same, whether they have nothing or something empty, and in any order of Removed.
func equal(a, b *remember.Response) bool {
	x, y := *a, *b
	if !maps.EqualFunc(x.Header, y.Header, slices.Equal[[]string]) || string(x.Body) != string(y.Body) ||
		!slices.Equal(slices.Sorted(slices.Values(x.Removed)), slices.Sorted(slices.Values(y.Removed))) {
		return false
	}
	x.Header, x.Body, x.Removed = nil, nil, nil
	y.Header, y.Body, y.Removed = nil, nil, nil
	return reflect.DeepEqual(x, y)
}

func payment() *remember.Response {
	return &remember.Response{
		Status:      http.StatusCreated,
		Header:      http.Header{"Content-Type": {"application/json"}, "Location": {"/payments/42"}},
		Removed:     []string{"Server", "Via"},
		Body:        []byte(`{"id":42,"state":"captured"}`),
		Fingerprint: [32]byte{1, 2, 3},
	}
}

func anyRoom(int) bool { return true }
