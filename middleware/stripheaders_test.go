package middleware_test

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
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

// In a tunnel of HTTP/2 the upstream would get requests from which nothing is removed.
func TestStripHeadersOffersNoTunnel(t *testing.T) {
	t.Parallel()
	for offer, want := range map[string]string{"h2c": "", "H2C": "", "websocket, h2c": "websocket", "websocket": "websocket"} {
		r := httptest.NewRequest("GET", "/login", http.NoBody)
		r.Header = http.Header{"Connection": {"Upgrade, HTTP2-Settings"}, "Upgrade": {offer}, "Http2-Settings": {"AAMAAABk"}}
		middleware.StripHeaders(r, middleware.DefaultFenceHeader)
		if got := r.Header.Get("Upgrade"); got != want || offer != want && r.Header.Get("Http2-Settings") != "" {
			t.Errorf("%s: %v", offer, r.Header)
		}
	}
}

// The body of CONNECT is such a tunnel as well: net/http's transport sends it as it is, and an upstream that answers CONNECT like any other method takes
// it for the next request.
func TestBodyOfConnectIsNoRequest(t *testing.T) {
	t.Parallel()
	var sent writesRequests
	proxy := &httputil.ReverseProxy{Rewrite: func(*httputil.ProxyRequest) {}, Transport: &sent}
	r := httptest.NewRequest(http.MethodConnect, "/login", io.NopCloser(strings.NewReader("POST /orders/42/pay HTTP/1.1\r\nHost: x\r\n\r\n")))
	r.ContentLength = -1 // as over HTTP/2
	r.Trailer = http.Header{"X-Sum": nil}
	middleware.Guard(proxy).ServeHTTP(httptest.NewRecorder(), r)
	if text := sent.String(); !strings.HasPrefix(text, "CONNECT ") || strings.Contains(text, "POST") {
		t.Errorf("it sends %q", text)
	}
}

// writesRequests is a transport that writes what a connection would get.
type writesRequests struct{ strings.Builder }

func (w *writesRequests) RoundTrip(r *http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody}, r.Write(w)
}

// A server makes the map of trailers only when the body has ended, if the client has announced none.
func TestStripHeadersFromNewTrailers(t *testing.T) {
	t.Parallel()
	var seen http.Header
	server := serve(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		middleware.StripHeaders(r, middleware.DefaultFenceHeader)
		_, _ = io.Copy(io.Discard, r.Body)
		seen = r.Trailer
	}))
	conn, err := net.Dial("tcp", server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_, _ = io.WriteString(conn, "POST / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nFencing_Token: 9\r\nX-Sum: 1\r\n\r\n")
	_, _ = io.Copy(io.Discard, conn)
	if len(seen) != 1 || seen.Get("X-Sum") != "1" {
		t.Errorf("trailers %v", seen)
	}
}
