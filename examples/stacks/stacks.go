// Package stacks shows the middleware in the routers that many programs use. Each function serves
// POST /orders/{id}/pay, one payment of an order at a time.
package stacks

import (
	"io"
	"net/http"
	"net/http/httputil"
	"net/url"

	"github.com/gin-gonic/gin"
	"github.com/go-chi/chi/v5"
	"github.com/labstack/echo/v4"

	"github.com/caddy-redlock/caddy-redlock/middleware"
	"github.com/caddy-redlock/caddy-redlock/redlock"
)

// ServeMux is that of net/http: {path.id} is its wildcard.
func ServeMux(locker *redlock.Locker, pay http.HandlerFunc) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("POST /orders/{id}/pay", middleware.New(locker, "order:{path.id}")(pay))
	return mux
}

// Chi has middleware of the same form, and gives its wildcards to the request.
func Chi(locker *redlock.Locker, pay http.HandlerFunc) http.Handler {
	router := chi.NewRouter()
	router.With(middleware.New(locker, "order:{path.id}")).Post("/orders/{id}/pay", pay)
	return router
}

// Echo wraps such middleware. Its wildcards are its own, so that the key counts segments.
func Echo(locker *redlock.Locker, pay http.HandlerFunc) http.Handler {
	e := echo.New()
	e.POST("/orders/:id/pay", echo.WrapHandler(pay), echo.WrapMiddleware(middleware.New(locker, "order:{path.1}")))
	return e
}

// Gin needs an adapter; see FromHTTP.
func Gin(locker *redlock.Locker, pay http.HandlerFunc) http.Handler {
	gin.SetMode(gin.ReleaseMode)
	router := gin.New()
	router.POST("/orders/:id/pay", FromHTTP(middleware.New(locker, "order:{path.1}")), gin.WrapF(pay))
	return router
}

// FromHTTP makes middleware of net/http into one of Gin.
func FromHTTP(m func(http.Handler) http.Handler) gin.HandlerFunc {
	return func(c *gin.Context) {
		served := false
		writer := c.Writer
		m(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			served = true
			c.Request, c.Writer = r, ginWriter{writer, w}
			c.Next()
		})).ServeHTTP(writer, c.Request)
		c.Writer = writer
		if !served {
			c.Abort()
		}
	}
}

// ginWriter is Gin's, whose writes go through the writer of the middleware.
type ginWriter struct {
	gin.ResponseWriter
	through http.ResponseWriter
}

func (w ginWriter) Write(p []byte) (int, error)       { return w.through.Write(p) }
func (w ginWriter) WriteString(s string) (int, error) { return io.WriteString(w.through, s) }
func (w ginWriter) WriteHeader(status int)            { w.through.WriteHeader(status) }
func (w ginWriter) Flush()                            { _ = http.NewResponseController(w.through).Flush() }

// ReverseProxy locks before an upstream. The payment runs to its end there, so that the lock is
// held for as long although the client may leave.
func ReverseProxy(locker *redlock.Locker, upstream *url.URL) http.Handler {
	proxy := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(upstream) }}
	return middleware.New(locker, "order:{path.1}", middleware.WithRunToEnd())(proxy)
}
