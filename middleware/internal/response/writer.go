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
// written, because then it is too late for another response.
//
// It holds back the last byte of a response of known length until the handler has flushed it or the lock is released: a client
// that sends its next request as soon as it has the whole response must not meet the lock of the previous one.
//
// With a Buffer the handler doesn't wait for the client. Without one it waits for as long as the Patience.
type Writer struct {
	http.ResponseWriter
	Begun  bool // any part of a final response has been written
	Status int  // that the handler has set, 0 if it leaves that to the server

	Recorder Recorder // gets a copy of the response; nil for none

	Options
	sender   sender
	queue    *queue
	header   http.Header // the handler's, if it may change them while the response is being sent
	left     int64       // of the declared length, yet to be written; negative if unknown
	last     [1]byte
	holdsOne bool // the last byte
	waited   bool
}

// Options say how a Writer treats the client.
type Options struct {
	// Whether the handler learns that the client can't be reached any more: a proxy would abandon an upstream that is still working.
	ToEnd bool
	// How long the client may keep its response waiting, at once, or in all and with a second more for each 16 KiB that it has taken.
	Patience time.Duration
	// Where the response waits for the client; nil for nowhere.
	Buffer *Buffer
}

// Recorder gets a copy of a response while it is written.
type Recorder interface {
	Begin(status int, h http.Header) // of the final response
	Write(p []byte)
	Forget() // the response is not what is written
}

// Unwrap returns the wrapped writer, for http.ResponseController.
func (w *Writer) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// Header returns the headers for the handler.
func (w *Writer) Header() http.Header {
	if w.header != nil {
		return w.header
	}
	return w.ResponseWriter.Header()
}

func (w *Writer) WriteHeader(status int) {
	if w.Begun && w.Buffer != nil { // the server would say that it is superfluous, but the writer may be in use
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

// begin begins the final response, but for its status.
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

// beginBody begins the final response, if the handler has left the status to the server.
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

// passHeader passes on the headers that the handler has set.
func (w *Writer) passHeader() {
	if w.header == nil {
		return
	}
	h := w.ResponseWriter.Header()
	clear(h)
	maps.Copy(h, w.header)
}

// passTrailers passes on the headers that come behind the body.
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
	if err := w.ReleaseLast(); err != nil { // the handler writes more than it declared: the server reports it
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

// ReleaseLast writes the byte that was held back, if there is one.
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

// FlushError is what http.ResponseController calls.
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
	if err != nil { // the handler may still answer
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

// readFrom doesn't leave the copy to the server, which would wait for the client without end.
func (w *Writer) readFrom(src io.Reader) (int64, error) {
	return io.Copy(struct{ io.Writer }{w}, src)
}

// End is called when the lock is free: it sends what the client has not got yet, and of a handler that has panicked what there is: a client
// that gets nothing at all may send its request again. After that nothing uses the writer.
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

// GaveUp reports whether the client was given up, as it kept its response waiting for too long.
func (w *Writer) GaveUp() bool { return w.sender.gaveUp() }

// HandlerWaited reports whether the handler had to wait for the client, as the Buffer was full.
func (w *Writer) HandlerWaited() bool { return w.waited }

func (w *Writer) hides(err error) bool { return w.ToEnd && err != nil && !isHandlers(err) }

// isHandlers reports whether the handler, and not the connection, has caused an error of a write.
func isHandlers(err error) bool {
	return errors.Is(err, http.ErrContentLength) || errors.Is(err, http.ErrBodyNotAllowed) || errors.Is(err, http.ErrHijacked) || errors.Is(err, http.ErrNotSupported)
}
