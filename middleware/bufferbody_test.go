package middleware_test

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/textproto"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/middleware"
	"github.com/caddy-redlock/caddy-redlock/redlock"
)

// noticedBody signals when it is read.
type noticedBody struct {
	io.ReadCloser
	read chan<- bool
}

func (b noticedBody) Read(p []byte) (int, error) {
	select {
	case b.read <- true:
	default:
	}
	return b.ReadCloser.Read(p)
}

// bufferedOrders serves orders, and signals when a body is read and when a handler begins.
func bufferedOrders(t *testing.T, h http.HandlerFunc, rule middleware.Rule) (server *httptest.Server, l *redlock.Locker, read chan bool, served *atomic.Int32) {
	l, read, served = newLocker(t, live), make(chan bool, 1), new(atomic.Int32)
	locked := middleware.New(l, "order:{header.Order}", rule)(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		served.Add(1)
		h(w, r)
	}))
	server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ContentLength != 0 {
			r.Body = noticedBody{r.Body, read}
		}
		locked.ServeHTTP(w, r)
	}))
	server.EnableHTTP2 = true
	server.StartTLS()
	t.Cleanup(server.Close)
	return server, l, read, served
}

func echo(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	_, _ = fmt.Fprintf(w, "%s %v %v", body, err, r.Trailer)
}

// A client that sends its headers and one byte doesn't hold the key; when it sends the rest, the handler has it all.
func TestBufferBody(t *testing.T) {
	t.Parallel()
	buffer := new(true)
	for name, rule := range map[string]middleware.Rule{
		"option": {BufferBody: buffer},
		"wait":   {BufferBody: buffer, Wait: bound},
		"preset": {Preset: "stripe", Dedupe: "off"},
	} {
		for protocol, transport := range map[string]func(*http.Transport){
			"HTTP/1.1": func(t *http.Transport) { t.Protocols = new(http.Protocols); t.Protocols.SetHTTP1(true) },
			"HTTP/2.0": func(*http.Transport) {},
		} {
			for _, length := range []int64{-1, 8} {
				t.Run(fmt.Sprint(name, " ", protocol, " ", length), func(t *testing.T) {
					server, l, read, _ := bufferedOrders(t, echo, rule)
					client := server.Client()
					transport(client.Transport.(*http.Transport))
					body, pipe := io.Pipe()
					request := newRequest(t, server.URL, "Order", "42")
					request.Body, request.ContentLength = body, length
					responses := make(chan string, 1)
					go func() {
						response, err := client.Do(request)
						if err != nil {
							t.Error(err)
							close(responses)
							return
						}
						text, _ := io.ReadAll(response.Body)
						_ = response.Body.Close()
						responses <- response.Proto + " " + string(text)
					}()
					_, _ = io.WriteString(pipe, "1")
					receive(t, read, "the read of the body")
					for range 3 { // the key is free
						requireFree(t, l, "order:42")
					}
					_, _ = io.WriteString(pipe, "2345678")
					_ = pipe.Close()
					if got, want := receive(t, responses, "the response"), protocol+" 12345678 <nil> map[]"; got != want {
						t.Errorf("got %q, want %q", got, want)
					}
				})
			}
		}
	}
}

// A body that doesn't arrive completely, or not in time, never gets the key, and no handler sees it.
func TestBodyThatIsNotCompleted(t *testing.T) {
	t.Parallel()
	server, l, read, served := bufferedOrders(t, echo, middleware.Rule{BufferBody: new(true), BodyTimeout: 300 * time.Millisecond})
	for _, http2 := range []bool{false, true} {
		client := server.Client()
		client.Transport.(*http.Transport).Protocols = new(http.Protocols)
		client.Transport.(*http.Transport).Protocols.SetHTTP1(!http2)
		client.Transport.(*http.Transport).Protocols.SetHTTP2(http2)
		for name, end := range map[string]func(*io.PipeWriter){
			"slow":    func(*io.PipeWriter) {},
			"aborted": func(pipe *io.PipeWriter) { _ = pipe.CloseWithError(io.ErrUnexpectedEOF) },
		} {
			body, pipe := io.Pipe()
			request := newRequest(t, server.URL, "Order", "42")
			request.Body = body
			responses := make(chan *http.Response, 1)
			go func() {
				response, _ := client.Do(request)
				responses <- response
			}()
			_, _ = io.WriteString(pipe, "half")
			receive(t, read, "the read of the body")
			end(pipe)
			response := receive(t, responses, name)
			if response != nil {
				_ = response.Body.Close()
			}
			if name == "slow" && (response == nil || response.StatusCode != http.StatusRequestTimeout) {
				t.Errorf("HTTP/2 %v: %+v to a slow client, want 408", http2, response)
			}
			_ = pipe.Close()
		}
	}
	requireFree(t, l, "order:42")
	if served.Load() > 0 {
		t.Errorf("%d were served", served.Load())
	}
}

// A body above max_body is refused and not streamed: the client could send it slowly.
func TestBufferedBodyAboveTheLimit(t *testing.T) {
	t.Parallel()
	server, _, _, served := bufferedOrders(t, echo, middleware.Rule{BufferBody: new(true), MaxBody: 100})
	for _, n := range []int{100, 101} {
		for _, unknown := range []bool{false, true} {
			request := newRequest(t, server.URL, "Order", "42")
			request.Body, request.ContentLength = io.NopCloser(strings.NewReader(strings.Repeat("x", n))), int64(n)
			if unknown {
				request.ContentLength = -1
			}
			response, err := server.Client().Do(request)
			if err != nil {
				t.Fatal(err)
			}
			_ = response.Body.Close()
			if want := map[int]int{100: http.StatusOK, 101: http.StatusRequestEntityTooLarge}[n]; response.StatusCode != want {
				t.Errorf("%d bytes, of unknown length: %v: %d, want %d", n, unknown, response.StatusCode, want)
			}
		}
	}
	if served.Load() != 2 {
		t.Errorf("%d were served, want 2", served.Load())
	}
}

// A client that waits to be asked for its body (Expect) is asked before the lock is taken, unless the body is too large.
func TestBufferedBodyThatIsAskedFor(t *testing.T) {
	t.Parallel()
	l := newLocker(t, live)
	server := serve(t, orders(l, echo, middleware.Rule{BufferBody: new(true), MaxBody: 100}))
	conn := dial(t, server.Listener.Addr(), "POST / HTTP/1.1\r\nHost: x\r\nOrder: 42\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n")
	lines := textproto.NewReader(bufio.NewReader(conn))
	if line, err := lines.ReadLine(); line != "HTTP/1.1 100 Continue" {
		t.Fatalf("%q, %v", line, err)
	}
	requireFree(t, l, "order:42")
	_, _ = io.WriteString(conn, "body")
	_, _ = lines.ReadLine()
	if line, err := lines.ReadLine(); line != "HTTP/1.1 200 OK" {
		t.Errorf("%q, %v", line, err)
	}
	conn = dial(t, server.Listener.Addr(), "POST / HTTP/1.1\r\nHost: x\r\nOrder: 42\r\nExpect: 100-continue\r\nContent-Length: 101\r\n\r\n")
	if status, _ := readResponse(t, conn); status != http.StatusRequestEntityTooLarge {
		t.Errorf("a large one: %d, want 413 and no 100", status)
	}
}

// The body is not read if the request takes no lock, or if it is a stream in both directions.
func TestNotBuffered(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		method string
		order  string
		rule   middleware.Rule
	}{
		"no key":             {http.MethodPost, "", middleware.Rule{OnMissingKey: middleware.Pass, BufferBody: new(true)}},
		"another protocol":   {http.MethodConnect, "42", middleware.Rule{AllowUpgrade: true, BufferBody: new(true)}},
		"preset without":     {http.MethodPost, "42", middleware.Rule{Preset: "github", BufferBody: new(false), Dedupe: ""}},
		"nothing said of it": {http.MethodPost, "42", middleware.Rule{}},
	} {
		r := httptest.NewRequest(test.method, "/", nil)
		r.Body, r.ContentLength = untouchable{t}, -1
		r.Header = http.Header{"Order": {test.order}, ":protocol": {"websocket"}} // of a CONNECT
		w := httptest.NewRecorder()
		orders(newLocker(t, live), ok, test.rule).ServeHTTP(w, r)
		if w.Body.String() != "served" {
			t.Errorf("%s: %d %s", name, w.Code, w.Body)
		}
	}
}

// A body of unknown length takes about as much room as it has bytes, and the handler reads all of it, even if a rule inside has needed it in one piece.
func TestBodyInPieces(t *testing.T) {
	t.Parallel()
	var text strings.Builder
	for i := range 200_000 {
		fmt.Fprint(&text, i, " ")
	}
	for _, size := range []int{10, 1024, 1025, 1026, 2050, 2051, 40_000, 600_000, 1 << 20} {
		for _, key := range []string{"inner:{header.Order}", "inner:{json.id}"} {
			body := `{"id":7}` + strings.Repeat(" ", size-8)
			if key == "inner:{header.Order}" {
				body = text.String()[:size]
			}
			budget, l := middleware.NewBudget(16<<20), newLocker(t, live)
			rule := middleware.Rule{BufferBody: new(true), BodyBudget: budget}
			r := httptest.NewRequest(http.MethodPost, "/", io.NopCloser(strings.NewReader(body)))
			r.ContentLength = -1
			r.Header = http.Header{"Order": {"42"}, "Content-Type": {jsonType}}
			w := httptest.NewRecorder()
			orders(l, middleware.New(l, key, rule)(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if used, _ := budget.Usage(); used > int64(size+33<<10) {
					t.Errorf("%s, %d bytes take %d", key, size, used)
				}
				if got, err := io.ReadAll(r.Body); err != nil || string(got) != body {
					t.Errorf("%s, %d bytes: got %d, %v", key, size, len(got), err)
				}
			})).ServeHTTP, rule).ServeHTTP(w, r)
			if used, _ := budget.Usage(); w.Code != http.StatusOK || used > 0 {
				t.Errorf("%s, %d bytes: %d %s, %d bytes are not given back", key, size, w.Code, w.Body, used)
			}
		}
	}
}
