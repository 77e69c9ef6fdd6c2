package middleware_test

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/caddy-redlock/caddy-redlock/middleware"
)

// reluctant is a client that has sent a request, and reads nothing before it is told to.
type reluctant interface {
	read(t *testing.T) (body string, err error)
}

type reluctant1 struct{ net.Conn }

func (c reluctant1) read(*testing.T) (string, error) {
	_ = c.SetReadDeadline(time.Now().Add(bound))
	response, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return "", err
	}
	body, err := io.ReadAll(response.Body)
	return string(body), err
}

// reluctant2 is one of HTTP/2 that opens no window.
type reluctant2 struct {
	net.Conn
	framer *http2.Framer
	write  sync.Mutex
	body   chan string
	reset  chan error
}

func (c *reluctant2) receive() {
	var body strings.Builder
	for {
		frame, err := c.framer.ReadFrame()
		if err != nil {
			c.end(err)
			return
		}
		c.write.Lock()
		switch f := frame.(type) {
		case *http2.SettingsFrame:
			if !f.IsAck() {
				_ = c.framer.WriteSettingsAck()
			}
		case *http2.DataFrame:
			body.Write(f.Data())
			if f.StreamEnded() {
				c.body <- body.String()
			}
		case *http2.RSTStreamFrame:
			c.end(fmt.Errorf("reset: %v", f.ErrCode))
		}
		c.write.Unlock()
	}
}

func (c *reluctant2) end(err error) {
	select {
	case c.reset <- err:
	default:
	}
}

func (c *reluctant2) read(t *testing.T) (string, error) {
	c.write.Lock()
	_ = c.framer.WriteWindowUpdate(0, 1<<30)
	_ = c.framer.WriteWindowUpdate(1, 1<<30)
	c.write.Unlock()
	select {
	case body := <-c.body:
		return body, nil
	case err := <-c.reset:
		return "", err
	case <-time.After(bound):
		t.Fatal("no response")
		return "", nil
	}
}

// askReluctantly sends a request for order 42 over HTTP/1 or HTTP/2.
func askReluctantly(t *testing.T, server *httptest.Server, protocol int) reluctant {
	t.Helper()
	conn, err := net.Dial("tcp", server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if protocol == 1 {
		_ = conn.(*net.TCPConn).SetReadBuffer(64 << 10)
		_, _ = io.WriteString(conn, "POST / HTTP/1.1\r\nHost: x\r\nOrder: 42\r\nContent-Length: 0\r\n\r\n")
		return reluctant1{conn}
	}
	c := &reluctant2{Conn: conn, framer: http2.NewFramer(conn, conn), body: make(chan string, 1), reset: make(chan error, 1)}
	_, _ = io.WriteString(conn, http2.ClientPreface)
	_ = c.framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
	var block bytes.Buffer
	encoder := hpack.NewEncoder(&block)
	for _, h := range [][2]string{{":method", "POST"}, {":scheme", "http"}, {":authority", "x"}, {":path", "/"}, {"order", "42"}} {
		_ = encoder.WriteField(hpack.HeaderField{Name: h[0], Value: h[1]})
	}
	_ = c.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block.Bytes(), EndStream: true, EndHeaders: true})
	go c.receive()
	return c
}

// serveBoth serves HTTP/1 and HTTP/2 without TLS, and lets the system keep little of what a client doesn't read.
func serveBoth(t *testing.T, h http.Handler) *httptest.Server {
	t.Helper()
	server := httptest.NewUnstartedServer(h)
	server.Config.Protocols = new(http.Protocols)
	server.Config.Protocols.SetHTTP1(true)
	server.Config.Protocols.SetUnencryptedHTTP2(true)
	server.Config.ConnState = func(conn net.Conn, state http.ConnState) {
		if tcp, ok := conn.(*net.TCPConn); ok && state == http.StateNew {
			_ = tcp.SetWriteBuffer(64 << 10)
		}
	}
	server.Start()
	t.Cleanup(server.Close)
	return server
}

// long is a response, and chunked are handlers of it.
var long = strings.Repeat("0123456789abcdef", 1<<16)

var chunked = map[string]http.HandlerFunc{
	"declared": func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", fmt.Sprint(len(long)))
		_, _ = io.WriteString(w, long)
	},
	"flushed": func(w http.ResponseWriter, _ *http.Request) { // as Caddy does with a response of unknown length
		for i := 0; i < len(long); i += 1 << 14 {
			_, _ = io.WriteString(w, long[i:i+1<<14])
			_ = http.NewResponseController(w).Flush()
		}
	},
	"flushed at the end": func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, long)
		w.(http.Flusher).Flush()
	},
}

// A client that doesn't read its response doesn't hold the key if the response is buffered. It finds the whole response when it reads.
func TestBufferResponse(t *testing.T) {
	t.Parallel()
	for name, handler := range chunked {
		for protocol := 1; protocol <= 2; protocol++ {
			for _, onAbort := range []string{"run", middleware.Cancel} {
				t.Run(fmt.Sprint(name, " HTTP/", protocol, " ", onAbort), func(t *testing.T) {
					t.Parallel()
					l, done, budget := newLocker(t, live), make(chan bool, 1), middleware.NewBudget(16<<20)
					rule := middleware.Rule{BufferResponse: new(true), MaxBody: 2 << 20, BodyBudget: budget, OnClientAbort: onAbort, ResponseTimeout: 2 * bound}
					server := serveBoth(t, orders(l, func(w http.ResponseWriter, r *http.Request) {
						handler(w, r)
						done <- true
					}, rule))
					client := askReluctantly(t, server, protocol)
					receive(t, done, "the end of the handler")
					requireFree(t, l, "order:42")
					if used, _ := budget.Usage(); used < int64(len(long))/2 {
						t.Errorf("%d bytes of the budget are used: the client has not read yet", used)
					}
					if body, err := client.read(t); body != long || err != nil {
						t.Errorf("%d bytes, %v", len(body), err)
					}
					for used, _ := budget.Usage(); used > 0; used, _ = budget.Usage() {
						if t.Context().Err() != nil {
							t.Fatalf("%d bytes of the budget are not given back", used)
						}
						time.Sleep(time.Millisecond)
					}
				})
			}
		}
	}
}

// A client that doesn't read a response for which there is no room holds the key until its time is over.
func TestResponseTimeout(t *testing.T) {
	t.Parallel()
	for setting, rule := range map[string]middleware.Rule{
		"not buffered": {},
		"too large":    {BufferResponse: new(true), MaxBody: 1 << 10},
		"buffered":     {BufferResponse: new(true), MaxBody: 2 << 20},
	} {
		for name, handler := range chunked {
			for protocol := 1; protocol <= 2; protocol++ {
				t.Run(fmt.Sprint(setting, " ", name, " HTTP/", protocol), func(t *testing.T) {
					t.Parallel()
					l, log, rule := newLocker(t, live), new(safeBuffer), rule
					rule.ResponseTimeout, rule.Logger = 100*time.Millisecond, slog.New(slog.NewTextHandler(log, nil))
					served := make(chan bool, 1)
					locked := orders(l, handler, rule)
					server := serveBoth(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
						locked.ServeHTTP(w, r)
						served <- true
					}))
					client := askReluctantly(t, server, protocol)
					receive(t, served, "the end of the request, whose client doesn't read")
					requireFree(t, l, "order:42")
					if body, err := client.read(t); err == nil {
						t.Errorf("the client has all %d bytes", len(body))
					}
					if got := log.String(); !strings.Contains(got, "too slowly") || strings.Contains(got, "order:42") {
						t.Errorf("log: %s", got)
					}
				})
			}
		}
	}
}

// A response above max_body is sent as it comes, and the log says that the lock was held for so long.
func TestResponseAboveTheBuffer(t *testing.T) {
	t.Parallel()
	for name, handler := range chunked {
		for protocol := 1; protocol <= 2; protocol++ {
			for _, budget := range []*middleware.Budget{middleware.NewBudget(1 << 20), middleware.NewBudget(10 << 10)} {
				l, log := newLocker(t, live), new(safeBuffer)
				logger := slog.New(slog.NewTextHandler(log, nil))
				server := serveBoth(t, orders(l, handler, middleware.Rule{BufferResponse: new(true), MaxBody: 10 << 10, BodyBudget: budget, Logger: logger}))
				if body, err := askReluctantly(t, server, protocol).read(t); body != long || err != nil {
					t.Errorf("%s, HTTP/%d: %d bytes, %v", name, protocol, len(body), err)
				}
				server.Close()
				if got := log.String(); strings.Count(got, "too large to be buffered") != 1 {
					t.Errorf("%s, HTTP/%d: log %q", name, protocol, got)
				}
				if used, _ := budget.Usage(); used > 0 {
					t.Errorf("%s, HTTP/%d: %d bytes of the budget are not given back", name, protocol, used)
				}
			}
		}
	}
}

// What a handler flushes is sent while it runs.
func TestBufferedStream(t *testing.T) {
	t.Parallel()
	for _, protocol := range []string{"HTTP/1.1", "HTTP/2.0"} {
		next := make(chan int)
		server := httptest.NewUnstartedServer(orders(newLocker(t, live), func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Trailer", "Sum")
			w.WriteHeader(http.StatusEarlyHints)
			h := w.Header()
			h.Set("Content-Type", "text/event-stream")
			_ = http.NewResponseController(w).Flush()
			for i := range next {
				_, _ = fmt.Fprintf(w, "data: %d\n", i)
				_ = http.NewResponseController(w).Flush()
				h.Set("Sum", fmt.Sprint(i)) // while it is sent
				h.Set("Late", "never sent")
			}
			h.Set(http.TrailerPrefix+"Other", "x")
		}, middleware.Rule{BufferResponse: new(true)}))
		server.EnableHTTP2 = protocol == "HTTP/2.0"
		server.StartTLS()
		t.Cleanup(server.Close)
		resp, err := server.Client().Do(newRequest(t, server.URL, "Order", "42")) // the headers come before the first event
		if err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewReader(resp.Body)
		for i := range 100 {
			next <- i
			if line, err := lines.ReadString('\n'); line != fmt.Sprintf("data: %d\n", i) || err != nil {
				t.Fatalf("%q, %v", line, err)
			}
		}
		close(next)
		rest, err := io.ReadAll(lines)
		_ = resp.Body.Close()
		if len(rest) > 0 || err != nil || resp.Proto != protocol || resp.Trailer.Get("Sum") != "99" || resp.Trailer.Get("Other") != "x" || resp.Header.Get("Late") != "" {
			t.Errorf("%s: %q, %v, trailers %v", resp.Proto, rest, err, resp.Trailer)
		}
	}
}

// A handler that panics breaks off its response, of which its client gets what there was: Go's client, and others, send a request again
// whose connection ended without a byte, if it has an Idempotency-Key.
func TestResponseIsBrokenOff(t *testing.T) {
	t.Parallel()
	l := newLocker(t, live)
	for name, test := range map[string]struct{ body, length string }{
		"a short one": {"part", ""}, "of known length": {"part", "5"}, "whole": {"part", "4"}, "a long one": {long, ""}, "none": {"", "4"},
	} {
		for _, buffer := range []bool{false, true} {
			for _, flush := range []bool{false, true} {
				var ran atomic.Int32
				server := serve(t, orders(l, func(w http.ResponseWriter, r *http.Request) {
					if r.URL.Path == "/first" {
						ok(w, r)
						return
					}
					ran.Add(1)
					if test.length != "" {
						w.Header().Set("Content-Length", test.length)
					}
					w.WriteHeader(http.StatusCreated)
					_, _ = io.WriteString(w, test.body)
					if flush {
						w.(http.Flusher).Flush()
					}
					panic(http.ErrAbortHandler)
				}, middleware.Rule{BufferResponse: new(buffer)}))
				post(t, server.URL+"/first", "Order", "42") // the next has a connection that has worked
				resp, err := http.DefaultClient.Do(newRequest(t, server.URL, "Order", "42", "Idempotency-Key", "a"))
				if err != nil {
					t.Errorf("%s, buffered %t, flushed %t: %v", name, buffer, flush, err)
					continue
				}
				got, err := io.ReadAll(resp.Body)
				_ = resp.Body.Close()
				complete := name == "whole" && flush
				if (err == nil) != complete || resp.StatusCode != http.StatusCreated || !strings.HasPrefix(test.body, string(got)) || len(got) < len(test.body)-1 || ran.Load() != 1 {
					t.Errorf("%s, buffered %t, flushed %t: %d with %d of %d bytes, %v; it ran %d times", name, buffer, flush, resp.StatusCode, len(got), len(test.body), err, ran.Load())
				}
				requireFree(t, l, "order:42")
			}
		}
	}
}

// A handler that fails before it has begun leaves its headers to the one for errors.
func TestHeadersOfFailedHandler(t *testing.T) {
	t.Parallel()
	l, rule := newLocker(t, live), middleware.Rule{BufferResponse: new(true)}
	locked := orders(l, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Set-By", "handler")
		w.Header().Del("Before")
	}, rule)
	server := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Before", "x")
		locked.ServeHTTP(w, r)
		w.WriteHeader(http.StatusTeapot)
	}))
	if got := post(t, server.URL, "Order", "42"); got.StatusCode != http.StatusTeapot || got.Header.Get("Set-By") != "handler" || got.Header.Get("Before") != "" {
		t.Errorf("%d %v", got.StatusCode, got.Header)
	}
}
