// Package stacks shows the middleware with popular routers. Each function serves POST /orders/{id}/pay, one payment of an order
// at a time.
package stacks

import (
	"io"
	"net/http"
	"net/http/httputil"
	"net/url"

	"github.com/gin-gonic/gin"
	"github.com/go-chi/chi/v5"
	"github.com/gofiber/fiber/v2"
	"github.com/gofiber/fiber/v2/middleware/adaptor"
	"github.com/gorilla/mux"
	"github.com/labstack/echo/v4"

	"github.com/caddy-redlock/caddy-redlock/middleware"
	"github.com/caddy-redlock/caddy-redlock/redlock"
)

// ServeMux uses the router of net/http: {path.id} is its wildcard.
func ServeMux(locker *redlock.Locker, pay http.HandlerFunc) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("POST /orders/{id}/pay", middleware.New(locker, "order:{path.id:int}", middleware.Rule{})(pay))
	return mux
}

// Chi takes the same kind of middleware, and sets its wildcards in the request.
func Chi(locker *redlock.Locker, pay http.HandlerFunc) http.Handler {
	router := chi.NewRouter()
	router.With(middleware.New(locker, "order:{path.id:int}", middleware.Rule{})).Post("/orders/{id}/pay", pay)
	return router
}

// Echo wraps such middleware. Its wildcards are not in the request, so the key names a segment of the path.
func Echo(locker *redlock.Locker, pay http.HandlerFunc) http.Handler {
	e := echo.New()
	e.POST("/orders/:id/pay", echo.WrapHandler(pay), echo.WrapMiddleware(middleware.New(locker, "order:{path.1:int}", middleware.Rule{})))
	return e
}

// Gin needs an adapter; see FromHTTP.
func Gin(locker *redlock.Locker, pay http.HandlerFunc) http.Handler {
	gin.SetMode(gin.ReleaseMode)
	router := gin.New()
	router.POST("/orders/:id/pay", FromHTTP(middleware.New(locker, "order:{path.1:int}", middleware.Rule{})), gin.WrapF(pay))
	return router
}

// FromHTTP turns net/http middleware into Gin middleware.
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

// ginWriter is Gin's writer, except that what is written goes through the writer of the middleware.
type ginWriter struct {
	gin.ResponseWriter
	through http.ResponseWriter
}

func (w ginWriter) Write(p []byte) (int, error)       { return w.through.Write(p) }
func (w ginWriter) WriteString(s string) (int, error) { return io.WriteString(w.through, s) }
func (w ginWriter) WriteHeader(status int)            { w.through.WriteHeader(status) }
func (w ginWriter) Flush()                            { _ = http.NewResponseController(w.through).Flush() }

// Gorilla does not set its wildcards in the request; MuxVars does.
func Gorilla(locker *redlock.Locker, pay http.HandlerFunc) http.Handler {
	router := mux.NewRouter()
	router.Handle("/orders/{id}/pay", MuxVars(middleware.New(locker, "order:{path.id:int}", middleware.Rule{})(pay))).Methods(http.MethodPost)
	return router
}

// MuxVars sets the wildcards of gorilla/mux in the request, as http.ServeMux does with its own.
func MuxVars(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for name, value := range mux.Vars(r) {
			r.SetPathValue(name, value)
		}
		next.ServeHTTP(w, r)
	})
}

// Fiber serves the locked handler through its adaptor. Don't use adaptor.HTTPMiddleware: it runs the handler after the middleware
// has returned, and so without the lock.
func Fiber(locker *redlock.Locker, pay http.HandlerFunc) *fiber.App {
	app := fiber.New(fiber.Config{DisableStartupMessage: true})
	app.Post("/orders/:id/pay", adaptor.HTTPHandler(middleware.New(locker, "order:{path.1:int}", middleware.Rule{})(pay)))
	return app
}

// ReverseProxy takes the lock before it passes a request to an upstream. The request runs to its end even if the client leaves,
// because the upstream goes on with the payment, and the lock is held for as long.
func ReverseProxy(locker *redlock.Locker, upstream *url.URL) http.Handler {
	proxy := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(upstream) }}
	return middleware.New(locker, "order:{path.1:int}", middleware.Rule{})(proxy)
}
