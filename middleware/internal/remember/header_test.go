package remember_test

import (
	"maps"
	"net/http"
	"slices"
	"testing"

	"github.com/caddy-redlock/caddy-redlock/middleware/internal/remember"
)

func TestEndToEnd(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		dropped http.Header
		cookies bool
	}{
		"nothing":             {},
		"Connection":          {dropped: http.Header{"Connection": {"close"}}},
		"named by Connection": {dropped: http.Header{"Connection": {"close, x-one", "X-TWO\t,,"}, "X-One": {"1"}, "X-Two": {"2", "2"}}},
		"in any spelling":     {dropped: http.Header{"connection": {"x-one"}, "x-one": {"1"}, "X-One": {"1"}, "te": {"gzip"}, "KEEP-ALIVE": {"5"}}},
		"Keep-Alive":          {dropped: http.Header{"Keep-Alive": {"timeout=5"}}},
		"Proxy-Authenticate":  {dropped: http.Header{"Proxy-Authenticate": {"Basic"}}},
		"Proxy-Authorization": {dropped: http.Header{"Proxy-Authorization": {"Basic eDp5"}}},
		"Proxy-Connection":    {dropped: http.Header{"Proxy-Connection": {"close"}}},
		"TE":                  {dropped: http.Header{"Te": {"trailers"}}},
		"Trailer":             {dropped: http.Header{"Trailer": {"Digest"}}},
		"Transfer-Encoding":   {dropped: http.Header{"Transfer-Encoding": {"chunked"}}},
		"Upgrade":             {dropped: http.Header{"Upgrade": {"h2c"}}},
		"Set-Cookie":          {dropped: http.Header{"Set-Cookie": {"a=1", "b=2"}, "Set-Cookie2": {"c=3"}, "set-cookie": {"d=4"}}},
		"with cookies":        {dropped: http.Header{"Keep-Alive": {"5"}}, cookies: true},
	} {
		kept := http.Header{"Content-Type": {"text/html"}, "Vary": {"A", "B"}, "Date": nil, "Set-Cookie-Policy": {"none"}, "Proxy-Status": {"ok"}, "Etag": {"7"}}
		if c.cookies {
			kept["Set-Cookie"] = []string{"a=1", "b=2"}
		}
		all := kept.Clone()
		maps.Copy(all, c.dropped)
		before := all.Clone()
		got := remember.EndToEnd(all, c.cookies)
		if !maps.EqualFunc(got, kept, slices.Equal[[]string]) {
			t.Errorf("%s: %v, want %v", name, got, kept)
		}
		for _, lines := range got {
			for i := range lines {
				lines[i] = "changed"
			}
		}
		if !maps.EqualFunc(all, before, slices.Equal[[]string]) {
			t.Errorf("%s: %v has become %v", name, before, all)
		}
	}
	if got := remember.EndToEnd(nil, true); len(got) > 0 {
		t.Errorf("of nothing: %v", got)
	}
}
