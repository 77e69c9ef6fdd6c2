package middleware

import (
	"net/http"
	"slices"
	"strings"

	"github.com/caddy-redlock/caddy-redlock/middleware/internal/fold"
)

// errHiddenPath reports a path within which some upstream finds another one.
const errHiddenPath = fold.Error(`path has a ";", a "\" or ".php/" in it`)

// errOverride reports a request that some upstream takes for one with another method.
const errOverride = fold.Error("request asks for another method than its own")

// asPHP writes a name as PHP reads it.
var asPHP = strings.NewReplacer(".", "_", " ", "_", "[", "_")

// overrides are the headers by which frameworks let a client name another method.
var overrides = []string{"X-Http-Method-Override", "X-Http-Method", "X-Method-Override"}

// Guard refuses requests that a router or matcher may take for others than an upstream does, so that they would pass by its rules: see
// CheckTarget. It answers with 400.
func Guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := CheckTarget(r); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// CheckTarget returns an error for a request whose target doesn't begin with "/", whose path only some servers clean (empty segments,
// dots, ";", "\", and a path behind a script of PHP), or that asks for another method, in a header or in the parameter _method of its
// query. The error shows nothing of the request.
func CheckTarget(r *http.Request) error {
	if _, err := segment(r, noSegment); err != nil {
		return err
	}
	if path := strings.ToLower(r.URL.Path); strings.ContainsAny(path, `;\`) || strings.Contains(path, ".php/") {
		return errHiddenPath
	}
	for name := range r.Header {
		if slices.ContainsFunc(overrides, func(override string) bool { return fold.SameHeader(name, override) }) {
			return errOverride
		}
	}
	for name := range r.URL.Query() {
		if strings.EqualFold(asPHP.Replace(name), "_method") {
			return errOverride
		}
	}
	return nil
}
