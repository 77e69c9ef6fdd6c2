package middleware

import (
	"net/http"
	"strings"
)

// Mux is an http.ServeMux that makes sure, when the program starts, that no route is forgotten. Handle panics for a pattern without a method, or with
// a method other than GET, HEAD and OPTIONS, unless the handler comes from a rule, from Require or from Unlocked. Put other middleware around the
// Mux, or inside the rule.
//
//	mux := new(middleware.Mux)
//	mux.Handle("POST /orders/{id}/pay", serialize(pay))
//	mux.Handle("POST /login", middleware.Unlocked(login))
//	mux.HandleFunc("GET /orders/{id}", show)
type Mux struct{ http.ServeMux }

// Handle registers a handler, as http.ServeMux does, or panics: see Mux.
func (m *Mux) Handle(pattern string, handler http.Handler) {
	method, _, found := strings.Cut(pattern, " ")
	if (!found || method == "" || !changesNothing(method)) && !Decided(handler) {
		panic("middleware: the pattern " + pattern + " may change something, and no rule locks its handler: wrap it in that of a rule, or in middleware.Unlocked")
	}
	m.ServeMux.Handle(pattern, handler)
}

// HandleFunc is Handle for a function.
func (m *Mux) HandleFunc(pattern string, handler func(http.ResponseWriter, *http.Request)) {
	m.Handle(pattern, http.HandlerFunc(handler))
}

// Unlocked marks a handler that needs no lock, so that a Mux accepts it.
func Unlocked(next http.Handler) http.Handler { return decided{next} }

// Decided reports whether a handler comes from a rule, from Require or from Unlocked. It is for a test that checks all routes of a router other
// than Mux, such as chi. The middlewares of a route can be checked with any handler:
//
//	chi.Walk(router, func(method, route string, h http.Handler, around ...func(http.Handler) http.Handler) error {
//		for _, m := range around {
//			if middleware.Decided(m(h)) {
//				return nil
//			}
//		}
//		…
//	})
func Decided(h http.Handler) bool {
	_, ok := h.(decided)
	return ok
}

// decided marks a handler that comes from a rule, from Require or from Unlocked.
type decided struct{ http.Handler }
