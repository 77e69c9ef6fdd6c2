package middleware

import (
	"errors"
	"log/slog"
	"net/http"
	"reflect"
	"runtime"
	"strings"
)

// errRunsLater reports a framework that calls its handler after the middleware has returned, and so without the lock.
var errRunsLater = errors.New("the adapter runs the handler after the middleware has returned, without its lock: " +
	"with Fiber, wrap the handler instead, adaptor.HTTPHandler(middleware.New(…)(handler))")

// runsLater reports whether the next handler is the one with which Fiber's adaptor.HTTPMiddleware merely notes that the
// middleware has called it. All other handlers are assumed to do their work before they return.
func runsLater(next http.Handler) bool {
	f, ok := next.(http.HandlerFunc)
	if !ok {
		return false
	}
	pc := reflect.ValueOf(f).Pointer()
	function := runtime.FuncForPC(pc)
	file, _ := function.FileLine(pc)
	return strings.Contains(function.Name(), "HTTPMiddleware.") && // after the caller's name if it is inlined
		strings.Contains(file, "github.com/gofiber/fiber/") && strings.Contains(file, "/adaptor/")
}

// refuseAll refuses all requests, rather than serve them without a lock.
func (rule *Serializer) refuseAll(err error) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		turn := Turn{Rule: rule.Name, Outcome: OutcomeFailed, Detail: detailOf(OutcomeFailed, err)}
		rule.logOutcome("request is refused", turn, err, slog.Int("status", http.StatusInternalServerError))
		rule.observeDone(OutcomeFailed, 0)
		(&Refusal{Status: http.StatusInternalServerError, Turn: turn, Err: err}).Write(w)
	})
}
