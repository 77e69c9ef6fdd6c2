package remembered_test

import (
	"crypto/rand"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"testing"

	"github.com/caddy-redlock/caddy-redlock/middleware/internal/remembered"
)

const storedUnder = "locks:{dedupe:4f2a}:result"

func newKey() []byte {
	key := make([]byte, 32)
	_, _ = rand.Read(key) // never fails
	return key
}

func newSealer(t testing.TB, keys ...[]byte) *remembered.Sealer {
	t.Helper()
	s, err := remembered.NewSealer(keys...)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func encode(t testing.TB, a *remembered.Response, s *remembered.Sealer) []byte {
	t.Helper()
	data, err := a.Encode(s, storedUnder)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func decode(t testing.TB, data []byte, s *remembered.Sealer) *remembered.Response {
	t.Helper()
	a, err := remembered.Decode(data, s, storedUnder)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// equal reports whether two responses are the same, whether they have nothing or something empty, and in any order of Removed.
func equal(a, b *remembered.Response) bool {
	x, y := *a, *b
	if !maps.EqualFunc(x.Header, y.Header, slices.Equal[[]string]) || string(x.Body) != string(y.Body) ||
		!slices.Equal(slices.Sorted(slices.Values(x.Removed)), slices.Sorted(slices.Values(y.Removed))) {
		return false
	}
	x.Header, x.Body, x.Removed = nil, nil, nil
	y.Header, y.Body, y.Removed = nil, nil, nil
	return reflect.DeepEqual(x, y)
}

func payment() *remembered.Response {
	return &remembered.Response{
		Status:      http.StatusCreated,
		Header:      http.Header{"Content-Type": {"application/json"}, "Location": {"/payments/42"}},
		Removed:     []string{"Server", "Via"},
		Body:        []byte(`{"id":42,"state":"captured"}`),
		Fingerprint: [32]byte{1, 2, 3},
	}
}

func anyRoom(int) bool { return true }
