package middleware

import (
	"bufio"
	"errors"
	"io"
	"net"
	"net/http"

	"github.com/felixge/httpsnoop"
)

// trackWrites tells whether anything of a final response has been written, so that it is too late
// for another answer. The writer keeps its optional interfaces. With toEnd it hides from the handler that
// the client can't be reached any more: a proxy would leave an upstream that is still at work.
func trackWrites(w http.ResponseWriter, toEnd bool) (http.ResponseWriter, *writes) {
	t := &writes{toEnd: toEnd}
	t.writer = httpsnoop.Wrap(w, httpsnoop.Hooks{
		WriteHeader: func(next httpsnoop.WriteHeaderFunc) httpsnoop.WriteHeaderFunc {
			return func(status int) {
				t.begun = t.begun || status >= 200 || status == http.StatusSwitchingProtocols
				next(status)
			}
		},
		Write: func(next httpsnoop.WriteFunc) httpsnoop.WriteFunc {
			return func(b []byte) (int, error) {
				t.begun = true
				n, err := next(b)
				if t.hides(err) {
					return len(b), nil
				}
				return n, err
			}
		},
		Flush: func(next httpsnoop.FlushFunc) httpsnoop.FlushFunc {
			return func() {
				t.begun = true
				next()
			}
		},
		FlushError: func(next httpsnoop.FlushErrorFunc) httpsnoop.FlushErrorFunc {
			return func() error {
				t.begun = true
				err := next()
				if t.hides(err) {
					return nil
				}
				return err
			}
		},
		Hijack: func(next httpsnoop.HijackFunc) httpsnoop.HijackFunc {
			return func() (net.Conn, *bufio.ReadWriter, error) {
				t.begun = true
				return next()
			}
		},
		ReadFrom: func(next httpsnoop.ReadFromFunc) httpsnoop.ReadFromFunc {
			return func(src io.Reader) (int64, error) {
				t.begun = true
				if t.toEnd { // an error would not tell whether it is of the source
					return io.Copy(struct{ io.Writer }{t.writer}, src)
				}
				return next(src)
			}
		},
	})
	return t.writer, t
}

// writes is what is known of those of a handler.
type writes struct {
	begun  bool // something of a final response has been written
	toEnd  bool
	writer http.ResponseWriter
}

func (t *writes) hides(err error) bool { return t.toEnd && err != nil && !isHandlers(err) }

// isHandlers says whether the handler is to blame for an error of a write, and not the connection.
func isHandlers(err error) bool {
	return errors.Is(err, http.ErrContentLength) || errors.Is(err, http.ErrBodyNotAllowed) || errors.Is(err, http.ErrHijacked)
}
