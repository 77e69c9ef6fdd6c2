package remember_test

import (
	"bytes"
	"errors"
	"net/http/httptest"
	"testing"

	"github.com/caddy-redlock/caddy-redlock/middleware/internal/remember"
)

// FuzzDecode reads anything that a master may have. What can be read must be read again after it is encoded, and be replayed
// without a panic.
func FuzzDecode(f *testing.F) {
	long := payment()
	long.Body = bytes.Repeat(long.Body, 40)
	for _, a := range []*remember.Response{payment(), long, {Status: 204}, {Status: 200, TooLarge: true}} {
		f.Add(encode(f, a, nil))
	}
	sealer := newSealer(f, bytes.Repeat([]byte{7}, 32))
	f.Add(encode(f, long, sealer))
	f.Fuzz(func(t *testing.T, data []byte) {
		if a, err := remember.Decode(data, sealer, storedUnder); err == nil && a == nil || err != nil && !errors.Is(err, remember.ErrUnreadable) {
			t.Fatalf("%+v, %v", a, err)
		}
		a, err := remember.Decode(data, nil, storedUnder)
		if err != nil {
			if !errors.Is(err, remember.ErrUnreadable) {
				t.Fatal(err)
			}
			return
		}
		if got := decode(t, encode(t, a, nil), nil); !equal(got, a) {
			t.Errorf("%+v was read as %+v", a, got)
		}
		a.Write(httptest.NewRecorder(), "POST")
	})
}
