// Package response wraps the http.ResponseWriter of a handler that holds a lock.
package response

import (
	"bufio"
	"cmp"
	"errors"
	"io"
	"maps"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"golang.org/x/net/http/httpguts"
)

// Writer is the http.ResponseWriter of a handler that holds a lock. It notes whether any part of a final response has been
// written, because then it is too late for a different response.
//
// It holds back the last byte of a response of known length until the handler flushes the response, or the lock is released. So a client that sends
// its next request as soon as it has the whole response doesn't find its key held by the previous request.
//
// With a Buffer the handler waits for the client only when the Buffer is full. No wait is longer than the Patience.
type Writer struct {
	http.ResponseWriter
	Begun  bool // a part of a final response has been written
	Status int  // the status that the handler has set; 0 for none

	Recorder Recorder // gets a copy of the response; nil for none

	Options
	sender   sender
	queue    *queue
	header   http.Header // a header map for the handler alone, because the handler may change it while the Buffer is being sent; nil without a Buffer
	left     int64       // how many bytes of the declared length are still to be written; negative if no length is declared
	last     [1]byte
	holdsOne bool // the last byte is held back
	waited   bool
}

// Options say how a Writer treats its client.
type Options struct {
	// Hides from the handler that its client can't be reached any more. Otherwise a proxy would abandon an upstream that still works.
	ToEnd bool
	// How long each wait for the client may take. All waits together may take this long, and a second more for each 16 KiB that the client has taken.
	Patience time.Duration
	// The memory in which the response waits for the client; nil for none.
	Buffer *Buffer
}

// Recorder gets a copy of a response while it is written.
type Recorder interface {
	Begin(status int, h http.Header) // called for the final response
	Write(p []byte)
	Forget() // called if the handler takes over the connection, so that the client may get a different response
}

func (w *Writer) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w *Writer) Header() http.Header {
	if w.header != nil {
		return w.header
	}
	return w.ResponseWriter.Header()
}

func (w *Writer) WriteHeader(status int) {
	if w.Begun && w.Buffer != nil { // don't pass on this second call, because another goroutine may be using the inner writer
		return
	}
	if status >= 200 || status == http.StatusSwitchingProtocols {
		if !w.Begun {
			w.Status = status
		}
		w.begin()
	}
	w.passHeader()
	w.ResponseWriter.WriteHeader(status)
}

// begin prepares the final response. The caller sends the status.
func (w *Writer) begin() {
	if w.Begun {
		return
	}
	w.Begun = true
	status := cmp.Or(w.Status, http.StatusOK)
	if w.Recorder != nil {
		w.Recorder.Begin(status, w.Header())
	}
	length, err := strconv.ParseInt(w.Header().Get("Content-Length"), 10, 64)
	if w.left = length; err != nil {
		w.left = -1
	}
	if w.Buffer != nil && status >= 200 && status != http.StatusNoContent && status != http.StatusNotModified {
		w.queue = newQueue(*w.Buffer, &w.sender)
	}
}

// beginBody begins the final response if the handler has set no status.
func (w *Writer) beginBody() {
	if w.Begun {
		return
	}
	w.begin()
	if w.Buffer != nil {
		w.passHeader()
		w.ResponseWriter.WriteHeader(http.StatusOK)
	}
}

func (w *Writer) passHeader() {
	if w.header == nil {
		return
	}
	h := w.ResponseWriter.Header()
	clear(h)
	maps.Copy(h, w.header)
}

// passTrailers copies the trailers to the inner writer.
func (w *Writer) passTrailers() {
	h := w.ResponseWriter.Header()
	for name, values := range w.header {
		if strings.HasPrefix(name, http.TrailerPrefix) || httpguts.HeaderValuesContainsToken(w.header["Trailer"], name) {
			h[name] = values
		}
	}
}

func (w *Writer) Write(p []byte) (int, error) {
	w.beginBody()
	if err := w.ReleaseLast(); err != nil { // if there was a last byte, the handler now writes more than it has declared
		return 0, err
	}
	if w.queue != nil && w.left >= 0 && int64(len(p)) > w.left {
		return 0, http.ErrContentLength
	}
	if w.Recorder != nil {
		w.Recorder.Write(p)
	}
	pass := p
	if w.left > 0 {
		w.left -= int64(len(p))
		if w.left == 0 {
			pass = p[:len(p)-1]
			w.last[0], w.holdsOne = p[len(p)-1], true
		}
	}
	if len(pass) < len(p) && len(pass) == 0 {
		return len(p), nil
	}
	n, err := w.pass(pass)
	switch {
	case w.hides(err):
		return len(p), nil
	case err == nil:
		return len(p), nil
	}
	return n, err
}

func (w *Writer) pass(p []byte) (int, error) {
	if w.queue != nil {
		return w.queue.write(p)
	}
	return w.sender.write(p)
}

// ReleaseLast writes the last byte if it was held back.
func (w *Writer) ReleaseLast() error {
	if !w.holdsOne {
		return nil
	}
	w.holdsOne = false
	if _, err := w.pass(w.last[:]); err != nil && !w.hides(err) {
		return err
	}
	return nil
}

func (w *Writer) FlushError() error {
	w.beginBody()
	err := w.ReleaseLast()
	switch {
	case err != nil:
	case w.queue != nil:
		err = w.queue.flush()
	default:
		err = w.sender.flush()
	}
	if w.hides(err) {
		return nil
	}
	return err
}

func (w *Writer) hijack() (net.Conn, *bufio.ReadWriter, error) {
	w.endQueue(false)
	conn, rw, err := http.NewResponseController(w.ResponseWriter).Hijack()
	if err != nil { // the handler still has the writer, and may send a response
		return nil, nil, err
	}
	if w.Recorder != nil {
		w.Recorder.Forget()
	}
	w.Begun = true
	return conn, rw, nil
}

func (w *Writer) endQueue(panicked bool) {
	if w.queue != nil {
		_ = w.queue.end(panicked) // the client may have left
		w.queue = nil
	}
}

// readFrom copies from src through Write, because the server's own copy would wait for the client without end.
func (w *Writer) readFrom(src io.Reader) (int64, error) {
	return io.Copy(struct{ io.Writer }{w}, src)
}

// End is called when the lock is free. It sends the bytes that the client hasn't got yet, even those of a handler that has panicked, because
// a client that gets nothing at all may repeat its request. Nothing uses the writer after that.
func (w *Writer) End(panicked bool) {
	if !panicked {
		_ = w.ReleaseLast() // the client may have left
	}
	w.waited = w.queue != nil && w.queue.full
	if panicked && w.Begun && w.queue == nil {
		_ = w.sender.flush()
	}
	w.endQueue(panicked)
	switch {
	case w.header == nil:
	case w.Begun:
		w.passTrailers()
	default:
		w.passHeader()
	}
}

func (w *Writer) GaveUp() bool { return w.sender.gaveUp() }

// HandlerWaited reports whether the handler had to wait for the client because the Buffer was full.
func (w *Writer) HandlerWaited() bool { return w.waited }

func (w *Writer) hides(err error) bool { return w.ToEnd && err != nil && !isHandlers(err) }

// isHandlers reports whether the handler has caused the error of a write, and not the connection.
func isHandlers(err error) bool {
	return errors.Is(err, http.ErrContentLength) || errors.Is(err, http.ErrBodyNotAllowed) || errors.Is(err, http.ErrHijacked) || errors.Is(err, http.ErrNotSupported)
}
