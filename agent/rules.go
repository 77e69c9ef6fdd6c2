package agent

import (
	"container/list"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"sync"

	"github.com/caddy-redlock/caddy-redlock/internal/base/inside"
	"github.com/caddy-redlock/caddy-redlock/internal/engine"
	"github.com/caddy-redlock/caddy-redlock/internal/programs/rule"
	"github.com/caddy-redlock/caddy-redlock/middleware"
)

const (
	maxSettings = 64 << 10
	maxRules    = 256
)

type gatewayRule struct {
	text    string
	onAbort string // the rule's on_client_abort, which the gateway applies
	rule    engine.Serializer
	release func()
}

// rules caches the rules that gateways have sent lately. The text of a rule's settings identifies the rule.
type rules struct {
	mu    sync.Mutex
	known map[string]*list.Element
	order list.List // of *gatewayRule, the most recently used first
}

func (a *Agent) rule(text []byte) (*gatewayRule, error) {
	a.rules.mu.Lock()
	defer a.rules.mu.Unlock()
	if e, ok := a.rules.known[string(text)]; ok {
		a.rules.order.MoveToFront(e)
		return e.Value.(*gatewayRule), nil
	}
	g, err := a.compile(text)
	if err != nil {
		return nil, refuse(http.StatusBadRequest, "%s", strings.TrimPrefix(err.Error(), "redlock: "))
	}
	if a.rules.known == nil {
		a.rules.known = make(map[string]*list.Element)
	}
	a.rules.known[g.text] = a.rules.order.PushFront(g)
	if a.rules.order.Len() > maxRules {
		last := a.rules.order.Remove(a.rules.order.Back()).(*gatewayRule)
		delete(a.rules.known, last.text)
		last.release()
	}
	return g, nil
}

func (a *Agent) compile(text []byte) (*gatewayRule, error) {
	settings, err := rule.Parse(text)
	if err != nil {
		return nil, err
	}
	if err := lacksResponses(&settings); err != nil {
		return nil, err
	}
	if settings.TTL > 0 {
		if err := inside.CheckTTL(a.locker, settings.TTL); err != nil {
			return nil, err
		}
	}
	settings.BodyBudget, settings.Logger, settings.Shutdown = a.budget, a.logger, a.stopping
	asGiven, err := engine.Compile(settings, engine.PlaceholderOf)
	if err != nil {
		return nil, err
	}
	given := asGiven.Rule()
	if given.Remember > 0 {
		return nil, errors.New("preset: has remember, and " + noResponses + `; set remember to "off"`)
	}
	// The gateway itself applies on_client_abort, so for the agent a request ends when the gateway ends it.
	settings.OnClientAbort, settings.OnHold = middleware.Cancel, a.remain
	// Read the whole body before the wait, because the agent notices the end of the connection only after it has read the body.
	settings.BufferBody = new(asGiven.ReadsBody())
	g := &gatewayRule{text: string(text), onAbort: given.OnClientAbort, release: func() {}}
	if a.observers != nil {
		settings.Observer, g.release = a.observers(given.Name)
	}
	if g.rule, err = engine.Compile(settings, engine.PlaceholderOf); err != nil {
		g.release()
		return nil, err
	}
	return g, nil
}

const noResponses = "the agent doesn't see the responses that a gateway passes on, so it can't remember them"

// lacksResponses refuses settings that need the responses to requests, which the agent doesn't see.
func lacksResponses(s *middleware.Rule) error {
	if s.Remember > 0 || s.RememberSize != 0 || s.RememberQuota != 0 || s.RememberStatus != nil || s.Fingerprint != nil || s.OnDuplicate == "wait" {
		return errors.New("remember: " + noResponses + "; Caddy's module and the middleware can")
	}
	return nil
}

// ruleResponse is the response to POST /v1/rule: the settings that the gateway itself needs.
type ruleResponse struct {
	ReadsBody     bool   `json:"reads_body"`
	MaxBody       int64  `json:"max_body"`
	BodyTimeoutMS int64  `json:"body_timeout_ms"`
	WaitMS        int64  `json:"wait_ms"` // the gateway gives up on the agent some seconds after WaitMS and BodyTimeoutMS together
	FenceHeader   string `json:"fence_header"`
	OnClientAbort string `json:"on_client_abort"`
}

func (a *Agent) serveRule(x *exchange, _ *http.Request) error {
	text, err := x.readAll(maxSettings)
	if err != nil {
		return lineError(err)
	}
	g, err := a.rule(text)
	if err != nil {
		return err
	}
	settings := g.rule.Rule()
	w := &buffered{header: http.Header{"Content-Type": {"application/json"}}, status: http.StatusOK}
	_ = json.NewEncoder(w).Encode(ruleResponse{ // all of these values can be encoded
		ReadsBody:     g.rule.ReadsBody(),
		MaxBody:       settings.MaxBody,
		BodyTimeoutMS: settings.BodyTimeout.Milliseconds(),
		WaitMS:        settings.Wait.Milliseconds(),
		FenceHeader:   settings.FenceHeader,
		OnClientAbort: g.onAbort,
	})
	x.tell(w)
	return nil
}
