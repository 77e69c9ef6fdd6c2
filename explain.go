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
	"strings"

	"github.com/caddyserver/caddy/v2"
	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"github.com/spf13/cobra"
)

func init() {
	caddycmd.RegisterCommand(caddycmd.Command{
		Name:  "redlock",
		Short: "Tools for the redlock directive",
		CobraFunc: func(cmd *cobra.Command) {
			var q question
			explain := &cobra.Command{
				Use:   "explain --config <path> [--adapter <name>] [-X <method>] [-H <header>]... [-d <body>|@<file>] <url>",
				Short: "Prints the redlock rule that a request matches, and the keys that it would lock",
				Long: `
Prints the redlock rules that a request matches, and the keys that they would lock.

Nothing is locked and no server is asked: Redis need not run. The handlers before
redlock that change the request are run, no proxy is.`,
				Args: cobra.ExactArgs(1),
				RunE: func(cmd *cobra.Command, args []string) error {
					cmd.SilenceUsage = true
					return q.answer(args[0], cmd.OutOrStdout())
				},
			}
			explain.Flags().StringVarP(&q.config, "config", "c", "", "Configuration file")
			explain.Flags().StringVarP(&q.adapter, "adapter", "a", "", "Name of config adapter to apply")
			explain.Flags().StringVarP(&q.method, "request", "X", "", "Method of the request")
			explain.Flags().StringArrayVarP(&q.headers, "header", "H", nil, "Header of the request, as Name: value")
			explain.Flags().StringVarP(&q.body, "data", "d", "", "Body of the request, or @file")
			cmd.AddCommand(explain)
		},
	})
}

// question is what `caddy redlock explain` is asked.
type question struct {
	config, adapter, method, body string
	headers                       []string
}

type explainKey struct{}

// explained collects what the rules say that a request comes through.
type explained struct{ text strings.Builder }

func (e *explained) add(h *Handler, r *http.Request) {
	keys := strings.Join(h.Keys, " ")
	if h.Preset != "" {
		keys = strings.TrimSpace(keys + " (preset " + h.Preset + ")")
	}
	fmt.Fprintf(&e.text, "rule      redlock %s\n%v", keys, h.rule.Explain(h.keys.Keys, r))
}

func (q *question) answer(url string, out io.Writer) error {
	r, err := q.request(url)
	if err != nil {
		return err
	}
	text, _, _, err := caddycmd.LoadConfig(q.config, q.adapter)
	if err != nil {
		return err
	}
	config, notes, err := harmless(text)
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
	for _, note := range notes {
		fmt.Fprintf(out, "note      %s\n", note)
	}
	var e explained
	w := &lastStatus{header: make(http.Header)}
	for _, server := range servers {
		server.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), explainKey{}, &e)))
	}
	if e.text.Len() == 0 {
		return fmt.Errorf("no redlock rule is reached; the handlers before answer with %d", cmp.Or(w.status, http.StatusOK))
	}
	_, err = io.WriteString(out, e.text.String())
	return err
}

func (q *question) request(url string) (*http.Request, error) {
	body := q.body
	if file, ok := strings.CutPrefix(body, "@"); ok {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		body = string(text)
	}
	method := cmp.Or(q.method, map[bool]string{true: http.MethodPost, false: http.MethodGet}[q.body != ""])
	r, err := http.NewRequest(method, url, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	if r.URL.Host == "" {
		return nil, errors.New("want a whole URL, such as https://shop.example.com/orders/42/pay")
	}
	for _, header := range q.headers {
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
	if q.body != "" && r.Header.Get("Content-Type") == "" { // as curl does it
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	r.RequestURI, r.RemoteAddr = r.URL.RequestURI(), "127.0.0.1:0"
	if r.URL.Scheme == "https" {
		r.TLS = &tls.ConnectionState{HandshakeComplete: true, ServerName: r.URL.Hostname()}
	}
	return r, nil
}

func portOf(r *http.Request) string {
	if r.TLS != nil {
		return cmp.Or(r.URL.Port(), "443")
	}
	return cmp.Or(r.URL.Port(), "80")
}

// serversOf are those that listen on the port of a request.
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

// lastStatus is a writer that nobody reads.
type lastStatus struct {
	header http.Header
	status int
}

func (w *lastStatus) Header() http.Header         { return w.header }
func (w *lastStatus) Write(p []byte) (int, error) { return len(p), nil }
func (w *lastStatus) WriteHeader(status int)      { w.status = status }
