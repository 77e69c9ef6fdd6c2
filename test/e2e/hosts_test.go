package e2e

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"fmt"
	"io"
	"maps"
	"mime"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/textproto"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// hosts has the servers behind and beside the sites of hostCases.
type hosts struct {
	echo, fallback, auth, large, failing, hints string // addresses
	dead                                        string // nobody listens there
	dir                                         string // of files
}

func newHosts(t *testing.T) *hosts {
	h := &hosts{dir: t.TempDir(), dead: freeAddr(t)}
	for into, handler := range map[*string]http.HandlerFunc{
		&h.echo:     echo("echo"),
		&h.fallback: echo("fallback"),
		&h.auth: func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("X-Token") == "" {
				http.Redirect(w, r, "/login", http.StatusFound)
			}
			w.Header().Set("Remote-User", "alice")
		},
		&h.large: func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/plain")
			w.Header().Set("Etag", `"abc"`)
			_, _ = io.WriteString(w, strings.Repeat("hello ", 20_000))
		},
		&h.failing: func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			http.Error(w, "boom", http.StatusInternalServerError)
		},
		&h.hints: func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Link", "</a.css>; rel=preload")
			w.WriteHeader(http.StatusEarlyHints)
			w.Header().Set("Trailer", "X-Sum")
			echo("hints")(w, r)
			w.Header().Set("X-Sum", "7")
		},
	} {
		server := httptest.NewServer(handler)
		t.Cleanup(server.Close)
		*into = server.Listener.Addr().String()
	}
	for name, text := range map[string]string{
		"f.txt":  strings.Repeat("0123456789", 1000),
		"b.html": `{{placeholder "http.request.body"}}`,
		"t.html": `{{.Req.Method}} {{.ReqHeader.Get "X-Q"}}`,
	} {
		if err := os.WriteFile(filepath.Join(h.dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return h
}

// echo returns a handler that answers with the request that it got.
func echo(name string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		header := r.Header.Clone()
		for _, of := range []string{"Fencing-Token", "X-Forwarded-Host", "Traceparent"} { // which differ between requests
			header.Del(of)
		}
		fmt.Fprintf(w, "%s %s %s %d %v %v %v\n%s", name, r.Method, r.RequestURI, r.ContentLength, err, r.Trailer, header, body)
	}
}

// hostCase is a site that is tried with and without the directive, in place of LOCK.
type hostCase struct {
	name, site string
	lock       string // the directive, if it is not "redlock {path.1}"
	requests   []*http.Request
}

// If the lock is free, a request gets the same response with the directive as without it, whatever other handlers the site has: the same
// status, header, body, trailers and informational responses.
func TestBesideOtherHandlers(t *testing.T) {
	needTime(t)
	t.Parallel()
	h := newHosts(t)
	cases := slices.Concat(bodyCases(h), errorCases(h), requestCases(h), responseCases(h))
	config := "{\nadmin {$ADMIN}\nauto_https off\ndefault_bind 127.0.0.1\nmetrics\nservers {\nprotocols h1 h2c\n}\n}\nhttp://{$LISTEN} {\nrespond up\n}\n"
	for i, c := range cases {
		lock := c.lock
		if lock == "" {
			lock = "redlock {path.1}"
		}
		for of, directive := range map[string]string{"plain": "", "locked": lock} {
			nested := ""
			if directive != "" {
				nested = "redlock {path.0} {method}-{path.1}"
			}
			site, named := strings.NewReplacer("LOCK", directive, "NESTED", nested).Replace(c.site), ""
			if before, after, ok := strings.Cut(site, "NAMED"); ok {
				site, named = before, fmt.Sprintf("&(r%d%s) {\n%s\n}\n", i, of, after)
				site += fmt.Sprintf("invoke r%d%s", i, of)
			}
			config += fmt.Sprintf("%shttp://c%d.%s.test:{$PORT} {\n%s\n}\n", named, i, of, site)
		}
	}
	c := runCaddy(t, config)
	for i, test := range cases {
		t.Run(test.name, func(t *testing.T) {
			for _, http2 := range []bool{false, true} {
				// What makes the response is the same there, and Go's client waits for a 100 that doesn't come.
				if http2 && (strings.HasPrefix(test.name, "response:") || strings.HasPrefix(test.name, "request: expect")) {
					continue
				}
				for _, r := range test.requests {
					plain := c.transcript(t, r, fmt.Sprintf("c%d.plain.test", i), http2)
					var locked string
					eventually(t, "the lock of the request before is free, whose response a handler has flushed", func() bool {
						locked = c.transcript(t, r, fmt.Sprintf("c%d.locked.test", i), http2)
						return !strings.HasPrefix(locked, "423 ")
					})
					if plain != locked {
						t.Errorf("%s %s, HTTP/2 %v\nwithout: %.1000s\nwith:    %.1000s", r.Method, r.URL, http2, plain, locked)
					}
				}
			}
		})
	}
}

// transcript sends a copy of a request to a host, and returns all that came back.
func (c *caddyProcess) transcript(t *testing.T, r *http.Request, host string, http2 bool) string {
	t.Helper()
	var text strings.Builder
	r = r.Clone(httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{
		Got1xxResponse: func(code int, header textproto.MIMEHeader) error {
			if code != http.StatusContinue { // that of the upstream may or may not be passed on
				fmt.Fprintln(&text, code, header)
			}
			return nil
		},
	}))
	r.URL.Scheme, r.URL.Host, r.Host = "http", strings.TrimPrefix(c.url, "http://"), host
	if r.GetBody != nil {
		r.Body, _ = r.GetBody()
	}
	transport := &http.Transport{DisableCompression: true, ExpectContinueTimeout: bound, Protocols: new(http.Protocols)}
	transport.Protocols.SetHTTP1(!http2)
	transport.Protocols.SetUnencryptedHTTP2(http2)
	defer transport.CloseIdleConnections()
	response, err := transport.RoundTrip(r)
	if err != nil {
		return err.Error()
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if response.Header.Get("Content-Encoding") == "gzip" && len(body) > 0 { // where it was flushed is chance
		unzip, err := gzip.NewReader(bytes.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		if body, err = io.ReadAll(unzip); err != nil {
			t.Error(err)
		}
	}
	response.Header.Del("Date")
	if response.StatusCode == http.StatusRequestEntityTooLarge { // of a refusal: 413 with another text
		response.Header.Del("Cache-Control")
		response.Header.Del("Redlock-Outcome")
	}
	fmt.Fprintf(&text, "%d %d\n", response.StatusCode, response.ContentLength)
	for _, name := range slices.Sorted(maps.Keys(response.Header)) {
		fmt.Fprintln(&text, name, response.Header[name])
	}
	fmt.Fprintf(&text, "%v %v %d %q", response.Trailer, err, len(body), body)
	_, parameters, _ := mime.ParseMediaType(response.Header.Get("Content-Type"))
	return strings.NewReplacer(host, "HOST", cmp.Or(parameters["boundary"], host), "BOUNDARY").Replace(text.String())
}

// ask returns a request; the header is alternating names and values.
func ask(method, path, body string, header ...string) *http.Request {
	r := httptest.NewRequest(method, path, nil)
	r.RequestURI = ""
	for i := 0; i < len(header); i += 2 {
		r.Header.Add(header[i], header[i+1])
	}
	if body == "" {
		r.Body = nil
		return r
	}
	r.ContentLength = int64(len(body))
	r.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader(body)), nil }
	return r
}

// chunked returns a request whose body has no known length, and has a trailer.
func chunked(method, path, body string, header ...string) *http.Request {
	r := ask(method, path, body, header...)
	r.ContentLength = -1
	r.Trailer = http.Header{"X-After": {"v"}}
	return r
}

func portOf(t *testing.T, addr string) string {
	t.Helper()
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		t.Fatal(err)
	}
	return port
}
