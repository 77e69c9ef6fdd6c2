package response

import (
	"bufio"
	"io"
	"net"
	"net/http"

	"github.com/felixge/httpsnoop"
)

// Wrap returns a writer for the handler, and the Writer inside it. The writer for the handler has the same optional interfaces as w. The types below
// have the usual combinations of these interfaces, and cost one allocation. For other combinations, httpsnoop makes one allocation for each method.
func Wrap(w http.ResponseWriter, o Options) (http.ResponseWriter, *Writer) {
	t := &Writer{ResponseWriter: w, Options: o, sender: sender{to: w, patience: o.Patience}}
	if o.Buffer != nil {
		t.header = w.Header().Clone()
		if t.header == nil {
			t.header = make(http.Header)
		}
	}
	_, pushes := w.(http.Pusher)
	_, flushes := w.(http.Flusher)
	switch w.(type) {
	case http1:
		if !pushes {
			return http1Writer{t}, t
		}
	case http2:
		if _, hijacks := w.(http.Hijacker); !hijacks {
			return http2Writer{t}, t
		}
	case caddys:
		if !flushes {
			return caddyWriter{t}, t
		}
	}
	return snoop(t), t
}

// The optional interfaces of the writers of net/http's server and of Caddy. Code in Caddy reaches all other methods through http.ResponseController.
type (
	http1 interface {
		http.Flusher
		http.Hijacker
		io.ReaderFrom
		//lint:ignore SA1019 Gin's writer requires it of the one that it wraps
		http.CloseNotifier
	}
	http2 interface {
		http.Flusher
		http.Pusher
		//lint:ignore SA1019 as above
		http.CloseNotifier
	}
	caddys interface {
		io.ReaderFrom
		http.Pusher
		Unwrap() http.ResponseWriter
	}
)

type http1Writer struct{ *Writer }

func (w http1Writer) Hijack() (net.Conn, *bufio.ReadWriter, error) { return w.hijack() }

func (w http1Writer) Flush()                                { _ = w.FlushError() }
func (w http1Writer) ReadFrom(src io.Reader) (int64, error) { return w.readFrom(src) }
func (w http1Writer) CloseNotify() <-chan bool              { return w.ResponseWriter.(http1).CloseNotify() }

func (w http1Writer) WriteString(s string) (int, error) { return w.Write([]byte(s)) }

type http2Writer struct{ *Writer }

func (w http2Writer) Flush()                            { _ = w.FlushError() }
func (w http2Writer) CloseNotify() <-chan bool          { return w.ResponseWriter.(http2).CloseNotify() }
func (w http2Writer) WriteString(s string) (int, error) { return w.Write([]byte(s)) }
func (w http2Writer) Push(target string, opts *http.PushOptions) error {
	return w.ResponseWriter.(http2).Push(target, opts)
}

type caddyWriter struct{ *Writer }

func (w caddyWriter) Hijack() (net.Conn, *bufio.ReadWriter, error) { return w.hijack() } // without this method, http.ResponseController would hijack the inner writer, and the Writer would not notice

func (w caddyWriter) ReadFrom(src io.Reader) (int64, error) { return w.readFrom(src) }
func (w caddyWriter) Push(target string, opts *http.PushOptions) error {
	return w.ResponseWriter.(caddys).Push(target, opts)
}

func snoop(t *Writer) http.ResponseWriter {
	return httpsnoop.Wrap(t.ResponseWriter, httpsnoop.Hooks{
		Header:      func(httpsnoop.HeaderFunc) httpsnoop.HeaderFunc { return t.Header },
		WriteHeader: func(httpsnoop.WriteHeaderFunc) httpsnoop.WriteHeaderFunc { return t.WriteHeader },
		Write:       func(httpsnoop.WriteFunc) httpsnoop.WriteFunc { return t.Write },
		Flush:       func(httpsnoop.FlushFunc) httpsnoop.FlushFunc { return func() { _ = t.FlushError() } },
		FlushError:  func(httpsnoop.FlushErrorFunc) httpsnoop.FlushErrorFunc { return t.FlushError },
		Hijack: func(httpsnoop.HijackFunc) httpsnoop.HijackFunc {
			return func() (net.Conn, *bufio.ReadWriter, error) { return t.hijack() }
		},
		ReadFrom: func(httpsnoop.ReadFromFunc) httpsnoop.ReadFromFunc { return t.readFrom },
	})
}
