// Package response wraps the http.ResponseWriter of a handler that holds a lock.
package response

import (
	"bufio"
	"cmp"
	"errors"
	"io"
	"net"
	"net/http"
	"strconv"
)

// Writer is the http.ResponseWriter of a handler that holds a lock. It notes whether any part of a final response has been
// written, because then it is too late for another answer.
//
// It holds back the last byte of an answer of known length until the handler has flushed it or the lock is released: a client
// that sends its next request as soon as it has the whole answer must not meet the lock of the previous one.
//
// With toEnd it hides from the handler that the client can no longer be reached: a proxy would abandon an upstream that is
// still working.
type Writer struct {
	http.ResponseWriter
	Begun  bool // any part of a final response has been written
	Status int  // that the handler has set, 0 if it leaves that to the server

	Recorder Recorder // gets a copy of the answer; nil for none

	toEnd    bool
	left     int64 // of the declared length, yet to be written; negative if unknown
	last     [1]byte
	holdsOne bool // the last byte
}

// Recorder gets a copy of an answer while it is written.
type Recorder interface {
	Begin(status int, h http.Header) // of the final response
	Write(p []byte)
	Forget() // the answer is not what is written
}

// Unwrap returns the wrapped writer, for http.ResponseController.
func (w *Writer) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w *Writer) WriteHeader(status int) {
	if status >= 200 || status == http.StatusSwitchingProtocols {
		if !w.Begun {
			w.Status = status
		}
		w.begin()
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *Writer) begin() {
	if w.Begun {
		return
	}
	w.Begun = true
	if w.Recorder != nil {
		w.Recorder.Begin(cmp.Or(w.Status, http.StatusOK), w.Header())
	}
	length, err := strconv.ParseInt(w.Header().Get("Content-Length"), 10, 64)
	if w.left = length; err != nil {
		w.left = -1
	}
}

func (w *Writer) Write(p []byte) (int, error) {
	w.begin()
	if err := w.ReleaseLast(); err != nil { // the handler writes more than it declared: the server reports it
		return 0, err
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
	n, err := w.ResponseWriter.Write(pass)
	switch {
	case w.hides(err):
		return len(p), nil
	case err == nil:
		return len(p), nil
	}
	return n, err
}

// ReleaseLast writes the byte that was held back, if there is one.
func (w *Writer) ReleaseLast() error {
	if !w.holdsOne {
		return nil
	}
	w.holdsOne = false
	if _, err := w.ResponseWriter.Write(w.last[:]); err != nil && !w.hides(err) {
		return err
	}
	return nil
}

// FlushError is what http.ResponseController calls.
func (w *Writer) FlushError() error {
	w.begin()
	err := w.ReleaseLast()
	if err == nil {
		err = http.NewResponseController(w.ResponseWriter).Flush()
	}
	if w.hides(err) {
		return nil
	}
	return err
}

func (w *Writer) hijack() (net.Conn, *bufio.ReadWriter, error) {
	if w.Recorder != nil {
		w.Recorder.Forget()
	}
	w.Begun = true
	return http.NewResponseController(w.ResponseWriter).Hijack()
}

func (w *Writer) readFrom(src io.Reader) (int64, error) {
	w.begin()
	var n int64
	if to, ok := w.ResponseWriter.(io.ReaderFrom); ok && !w.toEnd && w.Recorder == nil { // with toEnd it matters whether an error is that of the source
		if w.left < 0 {
			return to.ReadFrom(src)
		}
		var err error
		if n, err = w.allButOne(to, src); err != nil {
			return n, err
		}
	}
	rest, err := io.Copy(struct{ io.Writer }{w}, src)
	return n + rest, err
}

// allButOne copies all but the last byte. The server can send a file without reading it only if at most one
// io.LimitedReader is around it.
func (w *Writer) allButOne(to io.ReaderFrom, src io.Reader) (n int64, err error) {
	bounded, ok := src.(*io.LimitedReader)
	if !ok {
		n, err = to.ReadFrom(&io.LimitedReader{R: src, N: w.left - 1})
	} else {
		n, err = to.ReadFrom(&io.LimitedReader{R: bounded.R, N: min(bounded.N, w.left-1)})
		bounded.N -= n
	}
	w.left -= n
	return n, err
}

func (w *Writer) hides(err error) bool { return w.toEnd && err != nil && !isHandlers(err) }

// isHandlers reports whether the handler, and not the connection, has caused an error of a write.
func isHandlers(err error) bool {
	return errors.Is(err, http.ErrContentLength) || errors.Is(err, http.ErrBodyNotAllowed) || errors.Is(err, http.ErrHijacked) || errors.Is(err, http.ErrNotSupported)
}
