// Package traefik is a plugin for Traefik v3: one request per key at a time. It is a client of the agent (`redlock agent`), which derives keys,
// checks signatures and locks as Caddy does. The plugin describes each request to the agent, and then refuses it, or passes it on with the headers
// that the agent sets. docs/traefik.md describes how to set it up.
//
// Traefik runs the package in the interpreter Yaegi. So it imports only the standard library, whose code is compiled, and does
// little itself: each request runs a few calls. TestYaegiRunsIt has the cases that Yaegi gets wrong.
package traefik

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
)

// Config has the settings of a middleware, as in Traefik's dynamic configuration.
type Config struct {
	// Agent is where the agent listens: unix:/path, http://host:port, or https:// behind a proxy. Default: unix:/run/redlock/redlock.sock
	Agent string `json:"agent,omitempty" yaml:"agent,omitempty" toml:"agent,omitempty"`
	// Token is the token of an agent that listens on TCP. TokenFile is a file with the token.
	Token     string `json:"token,omitempty" yaml:"token,omitempty" toml:"token,omitempty"`
	TokenFile string `json:"tokenFile,omitempty" yaml:"tokenFile,omitempty" toml:"tokenFile,omitempty"`

	// CA is a file with the certificates, in PEM, of the authorities to trust for an agent at https://. Default: those of the system.
	CA string `json:"ca,omitempty" yaml:"ca,omitempty" toml:"ca,omitempty"`

	// Rule has all other settings, by name. The agent knows them, and checks them.
	Rule map[string]interface{} `json:"-" yaml:"-" toml:"-" mapstructure:",remain"`
}

// CreateConfig returns the defaults.
func CreateConfig() *Config { return &Config{Agent: "unix:/run/redlock/redlock.sock"} }

type handler struct {
	name  string
	next  http.Handler
	agent *agent
	rule  *rule
}

// New returns the middleware in front of next. Traefik calls it for each router at each change of the dynamic configuration.
// If the agent answers, wrong settings are errors, which Traefik logs with the name of the middleware; otherwise they are found
// by the first request that meets the agent. Errors contain no secrets.
func New(ctx context.Context, next http.Handler, config *Config, name string) (http.Handler, error) {
	h, err := newHandler(ctx, next, config, name)
	if err != nil {
		return nil, fmt.Errorf("redlock: middleware %s: %w", name, err) // Traefik itself names only the router
	}
	return h, nil
}

func newHandler(ctx context.Context, next http.Handler, config *Config, name string) (http.Handler, error) {
	if config == nil {
		return nil, errors.New("no configuration")
	}
	if where := fastProxy(os.Args, os.Environ()); where != "" {
		return nil, errors.New("experimental.fastProxy is on (" + where + "): it lets a request go on after its lock is lost, beside the next one; remove it")
	}
	token, err := config.token()
	if err != nil {
		return nil, err
	}
	a, err := agentAt(config.Agent, token, config.CA)
	if err != nil {
		return nil, fmt.Errorf("agent: %w", err)
	}
	r, err := newRule(a, config.Rule)
	if err != nil {
		return nil, err
	}
	h := &handler{name: name, next: next, agent: a, rule: r}
	return h, h.load(ctx)
}

// load asks the agent about the settings. It is no error if the agent is away, because it may start later.
func (h *handler) load(ctx context.Context) error {
	if h.agent.wasAway() {
		return nil
	}
	err := h.rule.load(ctx, h.agent)
	if err == nil {
		return nil
	}
	if wrong, ok := err.(*refusedRule); ok {
		return wrong
	}
	h.agent.away(h.name, err)
	return nil
}

// ServeHTTP takes a turn of the agent for the request, serves the request, and ends the turn when next has returned or panicked.
func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	t := &turn{agent: h.agent, rule: h.rule}
	if err := h.agent.enter(func() error { return h.rule.load(context.Background(), h.agent) }); err != nil { // the client doesn't decide whether the agent hangs
		h.withoutAgent(w, r, t, err)
		return
	}
	t.info = h.rule.info()
	if t.info == nil {
		if err := h.rule.load(r.Context(), h.agent); err != nil {
			h.withoutAgent(w, r, t, err)
			return
		}
		t.info = h.rule.info()
	}
	err := t.take(r)
	if err == nil && t.lines == nil {
		err = t.refusal()
	}
	if err != nil {
		if r.Context().Err() != nil {
			t.giveUpBody(w, r)
			w.WriteHeader(statusClientClosed)
			return
		}
		h.withoutAgent(w, r, t, err)
		return
	}
	if t.conn.again {
		h.agent.back(h.name)
	}
	if t.lines == nil {
		text := t.refused()
		t.giveUpBody(w, r)
		writeRefusal(w, t.response, text)
		return
	}
	broken := true // unless next returns: proxies break off a response by a panic
	defer func() { t.end(broken) }()
	h.next.ServeHTTP(w, t.request(r))
	broken = r.Context().Err() != nil
}

// statusClientClosed is nginx's status for a request whose client has left.
const statusClientClosed = 499

// withoutAgent refuses a request that the agent could not judge, or serves it without a lock if on_no_quorum is pass.
func (h *handler) withoutAgent(w http.ResponseWriter, r *http.Request, t *turn, err error) {
	h.agent.away(h.name, err)
	if h.rule.text("on_no_quorum") == "pass" && err != errBodyLate && t.rewind(r) {
		for _, name := range []string{h.rule.fenceHeader(), h.rule.text("key_header"), slotHeader} {
			stripFence(r, name)
		}
		h.next.ServeHTTP(w, r)
		return
	}
	status := h.rule.noQuorumStatus()
	text, _ := json.Marshal(map[string]interface{}{
		"type": "about:blank", "title": "The lock could not be taken", "status": status, "detail": "the agent that takes the locks is away",
	})
	w.Header().Set("Content-Type", "application/problem+json")
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("Retry-After", "1")
	w.Header().Set("Redlock-Outcome", "no_quorum")
	t.giveUpBody(w, r)
	w.WriteHeader(status)
	_, _ = w.Write(text)
}

// token returns the token, without the end of its line.
func (c *Config) token() (string, error) {
	if c.TokenFile == "" {
		return c.Token, nil
	}
	if c.Token != "" {
		return "", errors.New("token and tokenFile: give one of them")
	}
	text, err := os.ReadFile(c.TokenFile)
	if err != nil {
		return "", fmt.Errorf("tokenFile: %w", err)
	}
	token := strings.TrimRight(string(text), "\r\n")
	if token == "" {
		return "", errors.New("tokenFile: the file is empty")
	}
	return token, nil
}
