package remember_test

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/caddy-redlock/caddy-redlock/middleware/internal/remember"
)

func TestTooLarge(t *testing.T) {
	t.Parallel()
	for name, declared := range map[string]bool{"declared": true, "chunked": false} {
		t.Run(name, func(t *testing.T) {
			body := strings.Repeat("x", mostBytes+1)
			s := &remembering{next: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				for _, name := range []string{"Content-MD5", "Digest", "Repr-Digest", "Content-Digest", "ETag", "Last-Modified", "Content-Disposition"} {
					w.Header().Set(name, "of the body")
				}
				w.Header().Set("Content-Type", "text/csv")
				w.Header().Set("Content-Encoding", "x-own")
				w.Header().Set("Location", "/reports/7")
				if declared {
					w.Header().Set("Content-Length", fmt.Sprint(len(body)))
				}
				w.WriteHeader(http.StatusCreated)
				write(w, body[:10], body[10:])
			})}
			server := serve(t, s, false)
			if first := do(t, server, http.MethodPost); first.body != body {
				t.Fatalf("the first response is %+v", first)
			}
			again := do(t, server, http.MethodPost)
			want := `{"type":"https://github.com/caddy-redlock/caddy-redlock/blob/main/docs/problems.md#too_large","title":"The first response was too large to be remembered","status":201}` + "\n"
			runs, stored := s.ran()
			if runs != 1 || again.status != http.StatusCreated || again.body != want || again.header.Get("Location") != "/reports/7" {
				t.Errorf("after %d runs: %+v", runs, again)
			}
			for name, lines := range again.header {
				if strings.Contains(strings.Join(lines, ""), "of the body") {
					t.Errorf("%s is that of the body", name)
				}
			}
			if got := again.header.Get("Content-Type") + " " + again.header.Get("Content-Encoding"); got != "application/problem+json " {
				t.Errorf("content of type %q", got)
			}
			if again := do(t, server, http.MethodHead); again.status != http.StatusCreated || again.length != int64(len(want)) {
				t.Errorf("HEAD: %+v", again)
			}
			if bytes.Contains(stored, []byte("xxx")) || bytes.Contains(stored, []byte("of the body")) {
				t.Error("a part of the body is stored, or what describes it")
			}
		})
	}
}

func TestNotRemembered(t *testing.T) {
	t.Parallel()
	for name, handler := range map[string]http.HandlerFunc{
		"declared length too long": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "10")
			write(w, "short")
		},
		"declared length too short": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "3")
			write(w, "abc", "def")
		},
		"too large, and cut off": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", fmt.Sprint(mostBytes+1))
			write(w, "short")
		},
		"declared and not begun": func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Content-Length", "10") },
		"event stream": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "Text/Event-Stream; charset=utf-8")
			write(w, "data: 1\n\n")
			flush(w)
		},
		"gRPC": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/grpc-web+proto")
			write(w, "\x00\x00\x00\x00\x00")
		},
		"announced trailers": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Trailer", "Digest")
			write(w, "body")
			w.Header().Set("Digest", "late")
		},
		"trailers": func(w http.ResponseWriter, _ *http.Request) {
			write(w, "body")
			w.Header().Set(http.TrailerPrefix+"Digest", "late")
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := &remembering{next: handler}
			server := serve(t, s, false)
			server.Client().Transport.(*http.Transport).DisableKeepAlives = true // the server closes the connection after a wrong length
			first := do(t, server, http.MethodPost)
			again := do(t, server, http.MethodPost)
			if runs, _ := s.ran(); runs != 2 || again.header.Get("Idempotency-Replayed") != "" {
				t.Errorf("it ran %d times: %+v, %+v", runs, first, again)
			}
		})
	}
}

func TestCookies(t *testing.T) {
	t.Parallel()
	s := &remembering{next: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.SetCookie(w, &http.Cookie{Name: "session", Value: "7"})
		write(w, "body")
	})}
	server := serve(t, s, false)
	first := do(t, server, http.MethodPost).header["Set-Cookie"]
	again := do(t, server, http.MethodPost).header["Set-Cookie"]
	if !slices.Equal(first, []string{"visit=0", "session=7"}) || !slices.Equal(again, []string{"visit=1"}) { // of the server around, for the second request
		t.Errorf("%q, then %q", first, again)
	}
	if _, stored := s.ran(); bytes.Contains(stored, []byte("session")) || bytes.Contains(stored, []byte("visit")) {
		t.Errorf("%q is stored", stored)
	}
}

func TestRemovedCookies(t *testing.T) {
	t.Parallel()
	before := http.Header{"Set-Cookie": {"visit=1", "theme=dark"}}
	for name, c := range map[string]struct{ set, want []string }{
		"replaced": {[]string{"session=7"}, nil},
		"one":      {[]string{"visit=1"}, []string{"visit=2"}}, // which of the next request's is the other one is unknown
		"all":      {nil, nil},
	} {
		a, why := remember.NewRecorder(before, mostBytes, anyRoom).Response(http.MethodPost, http.Header{"Set-Cookie": c.set})
		if why != "" {
			t.Fatal("not remembered")
		}
		w := httptest.NewRecorder()
		w.Header().Set("Set-Cookie", "visit=2")
		a.Write(w, http.MethodPost)
		if got := w.Header()["Set-Cookie"]; !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// A replay says nothing of a body that it doesn't have, whoever has set it, and writes none where there can be none.
func TestReplayOfOthers(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		first            remember.Response
		method           string
		bodyLen          int
		length, encoding string
	}{
		"GET":                      {remember.Response{Status: 200, Body: []byte("body")}, "GET", 4, "4", "x-outer"},
		"of GET, for HEAD":         {remember.Response{Status: 200, Body: []byte("body")}, "HEAD", 0, "4", "x-outer"},
		"of HEAD":                  {remember.Response{Status: 200, Header: http.Header{"Content-Length": {"9"}}}, "HEAD", 0, "9", "x-outer"},
		"of HEAD, for GET":         {remember.Response{Status: 200, Header: http.Header{"Content-Length": {"9"}}}, "GET", 0, "0", "x-outer"},
		"no content, but a body":   {remember.Response{Status: 204, Body: []byte("body")}, "GET", 0, "", "x-outer"},
		"not modified, but a body": {remember.Response{Status: 304, Body: []byte("body")}, "GET", 0, "", "x-outer"},
		"too large":                {remember.Response{Status: 200, TooLarge: true}, "GET", 168, "168", ""},
		"too large, no content":    {remember.Response{Status: 204, TooLarge: true}, "GET", 0, "", "x-outer"},
	} {
		w := httptest.NewRecorder()
		w.Header().Set("Content-Encoding", "x-outer")
		c.first.Write(w, c.method)
		if w.Code != c.first.Status || w.Body.Len() != c.bodyLen || w.Header().Get("Content-Length") != c.length || w.Header().Get("Content-Encoding") != c.encoding {
			t.Errorf("%s: status %d, %v, %q", name, w.Code, w.Header(), w.Body)
		}
	}
}

func TestPassedOn(t *testing.T) {
	t.Parallel()
	for name, use := range map[string]func(r *remember.Recorder){
		"upgrade":        func(r *remember.Recorder) { r.Begin(http.StatusSwitchingProtocols, nil) },
		"hijacked":       func(r *remember.Recorder) { r.Forget() },
		"cut off":        func(r *remember.Recorder) { r.Begin(200, nil); r.Write([]byte("body")); r.Forget() },
		"without Begin":  func(r *remember.Recorder) { r.Write([]byte("body")) },
		"invalid status": func(r *remember.Recorder) { r.Begin(1000, nil) },
	} {
		r := remember.NewRecorder(nil, mostBytes, anyRoom)
		use(r)
		if a, why := r.Response(http.MethodPost, nil); why == "" || a != nil {
			t.Errorf("%s: %+v is remembered", name, a)
		}
	}
	if a, why := remember.NewRecorder(nil, mostBytes, anyRoom).Response(http.MethodConnect, nil); why != remember.Hijacked {
		t.Errorf("CONNECT: %+v is remembered", a)
	}
}

// The memory for a body comes with its first byte, and is never more than may be remembered.
func TestMemoryOfBody(t *testing.T) {
	part := make([]byte, 90)
	for name, c := range map[string]struct {
		header http.Header
		parts  int
		most   int // bytes of memory
	}{
		"none":                {nil, 0, 0},
		"small":               {nil, 1, 512},
		"near the limit":      {nil, 11, mostBytes},
		"declared":            {http.Header{"Content-Length": {"180"}}, 2, 180},
		"too large":           {nil, 12, 0},
		"declared too large":  {http.Header{"Content-Length": {"1080"}}, 12, 0},
		"larger than limited": {nil, 1000, 0},
	} {
		r := remember.NewRecorder(nil, mostBytes, anyRoom)
		r.Begin(http.StatusOK, c.header)
		for range c.parts {
			r.Write(part)
		}
		a, why := r.Response(http.MethodPost, c.header)
		if why != "" || cap(a.Body) > c.most || a.TooLarge != (c.parts > 11) {
			t.Errorf("%s: %v, %d bytes of memory, too large: %v", name, why, cap(a.Body), a.TooLarge)
		}
	}
	large := http.Header{"Content-Length": {"1000000"}}
	allocations := func(parts int) float64 {
		return testing.AllocsPerRun(100, func() {
			r := remember.NewRecorder(nil, mostBytes, anyRoom)
			r.Begin(http.StatusOK, large)
			for range parts {
				r.Write(part)
			}
		})
	}
	if with, without := allocations(3), allocations(0); with > without {
		t.Errorf("%v allocations for a body that is declared too large, %v for none", with, without)
	}
}

// TestRoomIsGivenBack: a body that can't be remembered takes no memory from then on, however long its response lasts.
func TestRoomIsGivenBack(t *testing.T) {
	t.Parallel()
	for name, giveUp := range map[string]func(r *remember.Recorder){
		"too large": func(r *remember.Recorder) { r.Write([]byte("56789")) },
		"hijacked":  (*remember.Recorder).Forget,
	} {
		has := 0
		r := remember.NewRecorder(nil, 8, func(bytes int) bool { has = bytes; return true })
		r.Begin(http.StatusOK, http.Header{})
		if r.Write([]byte("1234")); has == 0 {
			t.Errorf("%s: it takes no room at first", name)
		}
		if giveUp(r); has != 0 {
			t.Errorf("%s: it still takes room for %d bytes", name, has)
		}
	}
}
