package caddyredlock

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
	"github.com/spf13/cobra"
)

func explainCmd() *cobra.Command {
	var c explainCommand
	cmd := &cobra.Command{
		Use:   "explain [--config <path>] [--adapter <name>] [-X <method>] [-H <header>]... [-d <body>|@<file>] <url>",
		Short: "Prints the redlock rules that a request matches, and the keys that they would lock",
		Long: `
Prints the redlock rules that a request matches, and the keys that they would lock.

Nothing is locked and no server is contacted, so Redis need not run. Handlers that
change the request before redlock are run, proxies are not.`,
		Example:               `  caddy redlock explain -X POST https://shop.example.com/orders/42/pay`,
		DisableFlagsInUseLine: true,
		Args:                  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			cmd.SilenceUsage = true
			return c.run(args[0], cmd.OutOrStdout())
		},
	}
	c.configFlags.add(cmd.Flags())
	cmd.Flags().StringVarP(&c.method, "request", "X", "", "Method of the request")
	cmd.Flags().StringArrayVarP(&c.headers, "header", "H", nil, "Header of the request, as Name: value")
	cmd.Flags().StringVarP(&c.body, "data", "d", "", "Body of the request, or @file")
	return cmd
}

// explainCommand is the command "caddy redlock explain" with its flags.
type explainCommand struct {
	configFlags
	method, body string
	headers      []string
}

// explainKey is the key in the context of a request that is explained instead of served; its value is an *explanation.
type explainKey struct{}

// explanation collects what the rules report that a request reaches.
type explanation struct {
	text     strings.Builder
	rules    int
	answered bool // by a handler
}

func (e *explanation) add(h *Handler, r *http.Request) {
	e.rules++
	for _, template := range h.templates() {
		for _, name := range placeholderNames(template) {
			if guess := guessOf(name); guess != "" {
				fmt.Fprintf(&e.text, "note      {%s} can't be known: %s\n", name, guess)
			}
		}
	}
	fmt.Fprintf(&e.text, "rule      redlock %s\n%v", h.RuleName(), h.serializer.Explain(r))
}

func (c *explainCommand) run(url string, out io.Writer) error {
	r, err := c.request(url)
	if err != nil {
		return err
	}
	text, err := c.load()
	if err != nil {
		return err
	}
	config, notes, err := explainable(text)
	if err != nil {
		return err
	}
	ctx, err := caddy.ProvisionContext(config)
	if err != nil {
		return err
	}
	app, err := ctx.App("http")
	if err != nil {
		return err
	}
	servers := serversOf(app.(*caddyhttp.App), r)
	if len(servers) == 0 {
		return fmt.Errorf("no server of the configuration listens on port %s", portOf(r))
	}
	for _, note := range append(c.notes(r), notes...) {
		fmt.Fprintf(out, "note      %s\n", note)
	}
	path := r.URL.Path
	others := hidden(r)
	endings := []*http.Request{withEnding(r, "/"), withEnding(r, ";x")} // which Express and others, and Java, serve as path
	e, status := explain(servers, r)                                    // the handlers may change r
	if e.rules == 0 {
		return fmt.Errorf("no redlock rule applies: no matcher matches this request, or another handler answered %d first", status)
	}
	for _, other := range endings {
		variant := other.URL.Path
		if reached, _ := explain(servers, other); reached.rules < e.rules {
			fmt.Fprintf(out, "warning   %s reaches %d of these rules, and some upstreams serve it as %s: match more broadly (docs/keys.md)\n", variant, reached.rules, path)
		}
	}
	if _, err = io.WriteString(out, e.text.String()); err != nil {
		return err
	}
	if names := slices.Sorted(slices.Values(reaching(servers, others, e.rules))); len(names) > 0 {
		_, err = fmt.Fprintf(out, "warning   some upstreams serve these as %s, and no rule sees them: add the directive redlock_guard (docs/keys.md)\n          %s\n", path, strings.Join(names, "\n          "))
	}
	return err
}

// explain sends a request through the servers, and returns what the rules on its way report, and the status of the answer.
func explain(servers []*caddyhttp.Server, r *http.Request) (e *explanation, status int) {
	e = new(explanation)
	w := &lastStatus{header: make(http.Header)}
	for _, server := range servers {
		server.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), explainKey{}, e)))
	}
	e.answered = w.status != 0
	return e, cmp.Or(w.status, http.StatusOK)
}

// withEnding returns the same request with a changed end of its path, and without its body.
func withEnding(r *http.Request, ending string) *http.Request {
	other := r.Clone(r.Context())
	other.URL.Path = strings.TrimSuffix(other.URL.Path, "/") + ending
	other.URL.RawPath = ""
	other.RequestURI, other.Body, other.ContentLength = other.URL.RequestURI(), http.NoBody, 0
	return other
}

func (c *explainCommand) request(url string) (*http.Request, error) {
	method := cmp.Or(c.method, map[bool]string{true: http.MethodPost, false: http.MethodGet}[c.body != ""])
	if file, ok := strings.CutPrefix(c.body, "@"); ok {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		c.body = string(text)
	}
	r, err := http.NewRequest(method, url, strings.NewReader(c.body))
	if err != nil {
		return nil, err
	}
	if r.URL.Host == "" {
		return nil, errors.New("want a complete URL, such as https://shop.example.com/orders/42/pay")
	}
	for _, header := range c.headers {
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
	if c.body != "" && r.Header.Get("Content-Type") == "" { // as curl does it
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	r.RequestURI, r.RemoteAddr = r.URL.RequestURI(), "127.0.0.1:0"
	if r.URL.Scheme == "https" {
		r.TLS = &tls.ConnectionState{HandshakeComplete: true, ServerName: r.URL.Hostname()}
	}
	return r, nil
}

// notes returns what is sent differently from what may have been meant.
func (c *explainCommand) notes(r *http.Request) (notes []string) {
	if r.URL.Fragment != "" {
		notes = append(notes, "the fragment (# and what follows) is not part of a request")
	}
	given := func(header string) bool { return strings.HasPrefix(strings.ToLower(header), "content-type:") }
	if body := strings.TrimSpace(c.body); body != "" && !slices.ContainsFunc(c.headers, given) && strings.IndexByte("{[", body[0]) >= 0 {
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
