// Package explain says which rules of a configuration a request matches, and the keys that they would lock: it sends the request
// through the configuration's servers, which contact nobody, and the rules that it reaches report instead of locking.
package explain

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-redlock/caddy-redlock/internal/engine"
)

// Request is a request as it is given to the command.
type Request struct {
	URL, Method string
	Headers     []string // as Name: value
	Body        string   // or @file
}

// contextKey is the key in the context of a request that is explained instead of served; its value is an *Explanation.
type contextKey struct{}

// Explanation collects what the rules report that a request reaches.
type Explanation struct {
	text     strings.Builder
	rules    []engine.Explanation
	names    []string       // of the rules
	refusal  engine.Refusal // by redlock_require
	dryRun   bool           // which refuses nothing
	passed   bool           // by redlock_require, which has let it through
	answered bool           // by a handler
	status   int            // of the response
}

// Of returns where a rule reports that a request has reached it, or nil if the request is served.
func Of(r *http.Request) *Explanation {
	e, _ := r.Context().Value(contextKey{}).(*Explanation)
	return e
}

// Add reports a rule, with Caddy's names of the placeholders in its templates, and what it says of the request.
func (e *Explanation) Add(rule string, placeholders []string, says engine.Explanation) {
	e.rules, e.names = append(e.rules, says), append(e.names, rule)
	for _, name := range placeholders {
		if guess := guessOf(name); guess != "" {
			fmt.Fprintf(&e.text, "note      {%s} can't be known: %s\n", name, guess)
		}
	}
	fmt.Fprintf(&e.text, "rule      redlock %s\n%v", rule, says)
}

// Rules returns what the rules say that the request has reached.
func (e *Explanation) Rules() []engine.Explanation { return e.rules }

// Refuse reports that redlock_require refuses the request.
func (e *Explanation) Refuse(refusal engine.Refusal, dryRun bool) {
	e.refusal, e.dryRun = refusal, dryRun
	fmt.Fprintf(&e.text, "refused   %s\n", e.refused())
}

// Pass reports that redlock_require lets the request through; all says that it looks at each request.
func (e *Explanation) Pass(all bool) {
	if e.passed = true; len(e.rules) > 0 {
		return
	}
	why := "except names it"
	if !all {
		why += ", or its method changes nothing"
	}
	fmt.Fprintf(&e.text, "passed    without a lock by redlock_require: %s\n", why)
}

// refused says how redlock_require refuses the request.
func (e *Explanation) refused() string {
	text := fmt.Sprintf("%d %s by redlock_require: %s", e.refusal.Status(), e.refusal.Turn().Outcome, e.refusal.Turn().Detail)
	if e.dryRun {
		text += " (dry run: it is served)"
	}
	return text
}

// Run prints which rules of a configuration the request matches.
func Run(configuration []byte, asked Request, secrets Secrets, out io.Writer) error {
	r, err := asked.request()
	if err != nil {
		return err
	}
	servers, notes, err := load(configuration, r, secrets)
	if err != nil {
		return err
	}
	for _, note := range append(asked.notes(r), notes...) {
		fmt.Fprintf(out, "note      %s\n", note)
	}
	path := r.URL.Path
	others := hidden(r)
	endings := []*http.Request{withEnding(r, "/"), withEnding(r, ";x")} // which Express and others, and Java, serve as path
	e := explain(servers, r)                                            // the handlers may change r
	if len(e.rules) == 0 && e.refusal == nil && !e.passed {
		return fmt.Errorf("no redlock rule applies: no matcher matches this request, or another handler answered %d first", e.status)
	}
	for _, other := range endings {
		variant := other.URL.Path
		if reached := explain(servers, other); reached.servedWithout(len(e.rules)) {
			fmt.Fprintf(out, "warning   %s reaches %d of these rules, and some upstreams serve it as %s: match more broadly (docs/matchers.md)\n", variant, len(reached.rules), path)
		}
	}
	if _, err = io.WriteString(out, e.text.String()); err != nil {
		return err
	}
	if names := slices.Sorted(slices.Values(reaching(servers, others, len(e.rules)))); len(names) > 0 {
		_, err = fmt.Fprintf(out, "warning   some upstreams serve these as %s, and they don't reach all of these rules: add the directive redlock_guard (docs/matchers.md)\n          %s\n", path, strings.Join(names, "\n          "))
	}
	return err
}

// load returns the servers that a request may come to, and what was left out of them.
func load(configuration []byte, r *http.Request, secrets Secrets) (servers []*caddyhttp.Server, notes []string, err error) {
	config, notes, err := explainable(configuration, secrets)
	if err != nil {
		return nil, nil, err
	}
	ctx, err := caddy.ProvisionContext(config)
	if err != nil {
		return nil, nil, err
	}
	app, err := ctx.App("http")
	if err != nil {
		return nil, nil, err
	}
	if servers = serversOf(app.(*caddyhttp.App), r); len(servers) == 0 {
		return nil, nil, fmt.Errorf("no server of the configuration listens on port %s", portOf(r))
	}
	return servers, notes, nil
}

// servedWithout reports whether a handler serves the request without all of so many rules, and no rule or redlock_require refuses it.
func (e *Explanation) servedWithout(rules int) bool {
	return len(e.rules) < rules && e.answered && e.status < http.StatusBadRequest && (e.refusal == nil || e.dryRun) && !slices.ContainsFunc(e.rules, engine.Explanation.Refused)
}

// explain sends a request through the servers, and returns what the rules on its way report.
func explain(servers []*caddyhttp.Server, r *http.Request) *Explanation {
	e := new(Explanation)
	w := &lastStatus{header: make(http.Header)}
	for _, server := range servers {
		server.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), contextKey{}, e)))
	}
	e.answered, e.status = w.status != 0, cmp.Or(w.status, http.StatusOK)
	return e
}

// withEnding returns the same request with a changed end of its path.
func withEnding(r *http.Request, ending string) *http.Request {
	other := r.Clone(r.Context())
	other.URL.Path = strings.TrimSuffix(other.URL.Path, "/") + ending
	other.URL.RawPath = ""
	other.RequestURI = other.URL.RequestURI()
	other.Body, _ = r.GetBody() // never an error for a text
	return other
}

func (c *Request) request() (*http.Request, error) {
	method := cmp.Or(c.Method, map[bool]string{true: http.MethodPost, false: http.MethodGet}[c.Body != ""])
	if file, ok := strings.CutPrefix(c.Body, "@"); ok {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		c.Body = string(text)
	}
	r, err := http.NewRequest(method, c.URL, strings.NewReader(c.Body))
	if err != nil {
		return nil, err
	}
	if r.URL.Host == "" {
		return nil, errors.New("want a complete URL, such as https://shop.example.com/orders/42/pay")
	}
	for _, header := range c.Headers {
		name, value, ok := strings.Cut(header, ":")
		if !ok {
			return nil, fmt.Errorf("header %q: want Name: value", name)
		}
		r.Header.Add(name, strings.TrimSpace(value))
	}
	if host := r.Header.Get("Host"); host != "" {
		r.Host = host
		r.Header.Del("Host")
	}
	if c.Body != "" && r.Header.Get("Content-Type") == "" { // as curl does it
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	r.RequestURI, r.RemoteAddr = r.URL.RequestURI(), "127.0.0.1:0"
	if r.URL.Scheme == "https" {
		r.TLS = &tls.ConnectionState{HandshakeComplete: true, ServerName: r.URL.Hostname()}
	}
	return r, nil
}

// notes returns what is sent differently from what may have been meant.
func (c *Request) notes(r *http.Request) (notes []string) {
	if r.URL.Fragment != "" {
		notes = append(notes, "the fragment (# and what follows) is not part of a request")
	}
	given := func(header string) bool { return strings.HasPrefix(strings.ToLower(header), "content-type:") }
	if body := strings.TrimSpace(c.Body); body != "" && !slices.ContainsFunc(c.Headers, given) && strings.IndexByte("{[", body[0]) >= 0 {
		notes = append(notes, "the body is sent as a form, as curl does; for JSON add -H 'Content-Type: application/json'")
	}
	return notes
}

func portOf(r *http.Request) string {
	if r.TLS != nil {
		return cmp.Or(r.URL.Port(), "443")
	}
	return cmp.Or(r.URL.Port(), "80")
}

// serversOf returns the servers that listen on the port of a request.
func serversOf(app *caddyhttp.App, r *http.Request) (servers []*caddyhttp.Server) {
	for _, server := range app.Servers {
		for _, listen := range server.Listen {
			if addr, err := caddy.ParseNetworkAddress(listen); err == nil && addr.PortRangeSize() == 1 && fmt.Sprint(addr.StartPort) == portOf(r) {
				servers = append(servers, server)
			}
		}
	}
	return servers
}

// lastStatus is a ResponseWriter that keeps only the status.
type lastStatus struct {
	header http.Header
	status int
}

func (w *lastStatus) Header() http.Header         { return w.header }
func (w *lastStatus) Write(p []byte) (int, error) { return len(p), nil }
func (w *lastStatus) WriteHeader(status int)      { w.status = status }
