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
func trackWrites(w http.ResponseWriter, toEnd bool) (http.ResponseWriter, *bool) {
	written := new(bool)
	hidden := func(err error) bool { return toEnd && err != nil && !isHandlers(err) }
	hooks := httpsnoop.Hooks{
		WriteHeader: func(next httpsnoop.WriteHeaderFunc) httpsnoop.WriteHeaderFunc {
			return func(status int) {
				*written = *written || status >= 200 || status == http.StatusSwitchingProtocols
				next(status)
			}
		},
		Write: func(next httpsnoop.WriteFunc) httpsnoop.WriteFunc {
			return func(b []byte) (int, error) {
				*written = true
				n, err := next(b)
				if hidden(err) {
					return len(b), nil
				}
				return n, err
			}
		},
		Flush: func(next httpsnoop.FlushFunc) httpsnoop.FlushFunc {
			return func() {
				*written = true
				next()
			}
		},
		FlushError: func(next httpsnoop.FlushErrorFunc) httpsnoop.FlushErrorFunc {
			return func() error {
				*written = true
				err := next()
				if hidden(err) {
					return nil
				}
				return err
			}
		},
		Hijack: func(next httpsnoop.HijackFunc) httpsnoop.HijackFunc {
			return func() (net.Conn, *bufio.ReadWriter, error) {
				*written = true
				return next()
			}
		},
	}
	var wrapped http.ResponseWriter
	hooks.ReadFrom = func(next httpsnoop.ReadFromFunc) httpsnoop.ReadFromFunc {
		return func(src io.Reader) (int64, error) {
			*written = true
			if toEnd { // an error would not tell whether it is of the source
				return io.Copy(struct{ io.Writer }{wrapped}, src)
			}
			return next(src)
		}
	}
	wrapped = httpsnoop.Wrap(w, hooks)
	return wrapped, written
}

// isHandlers says whether the handler is to blame for an error of a write, and not the connection.
func isHandlers(err error) bool {
	return errors.Is(err, http.ErrContentLength) || errors.Is(err, http.ErrBodyNotAllowed) || errors.Is(err, http.ErrHijacked)
}
