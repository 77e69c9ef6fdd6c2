package middleware_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/caddy-redlock/caddy-redlock/middleware"
)

// endsWithTrailers is a body at whose end the server adds trailers that nobody has announced.
type endsWithTrailers struct {
	io.Reader
	trailers http.Header
}

func (b endsWithTrailers) Read(p []byte) (int, error) {
	n, err := b.Reader.Read(p)
	if err == io.EOF {
		b.trailers["X_fence"], b.trailers["X-Sum"] = []string{"9"}, []string{"1"}
	}
	return n, err
}

func (endsWithTrailers) Close() error { return nil }

func TestStripHeaders(t *testing.T) {
	t.Parallel()
	r := httptest.NewRequest("POST", "/", http.NoBody)
	r.Header = http.Header{"Fencing-Token": {"9"}, "Fencing_token": {"9"}, "fencing.TOKEN": {"9"}, "X-Fence": {"9"}, "X-Fences": {"1"}}
	r.Trailer = http.Header{"Fencing-Token": nil, "X-Sum": nil}
	r.Body = endsWithTrailers{strings.NewReader("x"), r.Trailer}
	middleware.StripHeaders(r, middleware.DefaultFenceHeader, "x-fence")
	body, err := io.ReadAll(r.Body)
	if got := fmt.Sprintln(string(body), err, r.Header, r.Trailer); got != "x <nil> map[X-Fences:[1]] map[X-Sum:[1]]\n" {
		t.Error(got)
	}
}
