package agent

import (
	"cmp"
	"container/list"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/caddy-redlock/caddy-redlock/internal/lockerinfo"
	"github.com/caddy-redlock/caddy-redlock/internal/rule"
	"github.com/caddy-redlock/caddy-redlock/middleware"
)

const (
	maxSettings = 64 << 10 // bytes of the settings of a rule
	maxRules    = 256      // that are kept
)

// gatewayRule is a rule that a gateway has sent.
type gatewayRule struct {
	text     string
	settings *rule.Settings
	rule     *middleware.Rule
	keys     middleware.Templates
	release  func() // of its observer; nil for none

	readsBody bool
}

// derive is nil if the rule locks only IDs.
func (g *gatewayRule) derive() middleware.KeysFunc {
	if g.keys == nil {
		return nil
	}
	return g.keys.Keys
}

// rules are those that gateways have sent of late, by their settings as they were sent.
type rules struct {
	mu    sync.Mutex
	known map[string]*list.Element
	order list.List // of *gatewayRule, the latest first
}

// rule returns the rule with these settings, or what is wrong with them.
func (a *Agent) rule(text []byte) (*gatewayRule, error) {
	a.rules.mu.Lock()
	defer a.rules.mu.Unlock()
	if e, ok := a.rules.known[string(text)]; ok {
		a.rules.order.MoveToFront(e)
		return e.Value.(*gatewayRule), nil
	}
	g, err := a.compile(text)
	if err != nil {
		return nil, refuse(http.StatusBadRequest, "%v", err)
	}
	if a.rules.known == nil {
		a.rules.known = make(map[string]*list.Element)
	}
	a.rules.known[g.text] = a.rules.order.PushFront(g)
	if a.rules.order.Len() > maxRules {
		last := a.rules.order.Remove(a.rules.order.Back()).(*gatewayRule)
		delete(a.rules.known, last.text)
		if last.release != nil {
			last.release()
		}
	}
	return g, nil
}

func (a *Agent) compile(text []byte) (*gatewayRule, error) {
	settings, err := rule.Parse(text)
	if err != nil {
		return nil, err
	}
	g := &gatewayRule{text: string(text), settings: settings}
	g.rule = &middleware.Rule{BodyBudget: a.budget, Logger: a.logger, Shutdown: a.stopping}
	if g.keys, err = settings.Fill(g.rule, (*middleware.Rule).Placeholder); err != nil {
		return nil, err
	}
	if err := lacksAnswers(settings, g.rule); err != nil {
		return nil, err
	}
	if settings.Verify != nil {
		literal := func(text string) (string, error) { return text, nil }
		if g.rule.Verify, err = settings.Verify.Verifier(literal); err != nil {
			return nil, err
		}
		if err := g.rule.Check(); err != nil {
			return nil, err
		}
	}
	if g.rule.TTL > 0 {
		if err := lockerinfo.CheckTTL(a.locker, g.rule.TTL); err != nil {
			return nil, err
		}
	}
	g.rule.RunToEnd = false // how long a turn lasts is for the gateway to say
	if g.readsBody = settings.ReadsBody(g.rule, g.keys); g.readsBody {
		g.rule.BufferBody = true // so that the wait, in which the end of the connection is noticed, comes after the body
	}
	if a.observers != nil {
		g.rule.Observer, g.release = a.observers(g.rule.Name)
	}
	return g, nil
}

// lacksAnswers refuses settings for which an agent would have to see the answers.
func lacksAnswers(s *rule.Settings, filled *middleware.Rule) error {
	const why = "the agent doesn't see the answers that a gateway passes on, so it can't remember them"
	switch {
	case s.Remember > 0, s.RememberSize != 0, s.RememberStatus != nil, s.Fingerprint != nil:
		return errors.New("remember: " + why + "; Caddy's module and the middleware can")
	case filled.Remember > 0:
		return errors.New("preset: has remember, and " + why + `; set remember to "off"`)
	}
	return nil
}

// ruleAnswer is the answer of POST /v1/rule: what a gateway must know of its rule.
type ruleAnswer struct {
	Name          string `json:"name"`
	ReadsBody     bool   `json:"reads_body"`
	MaxBody       int64  `json:"max_body"`
	BodyTimeoutMS int64  `json:"body_timeout_ms"`
	WaitMS        int64  `json:"wait_ms"` // after both, an agent that says nothing is stopped
	FenceHeader   string `json:"fence_header"`
	OnClientAbort string `json:"on_client_abort"`
	OnNoQuorum    string `json:"on_no_quorum"`
	NoQuorum      int    `json:"no_quorum_status"`
	AllowUpgrade  bool   `json:"allow_upgrade"`
}

func (a *Agent) serveRule(w http.ResponseWriter, r *http.Request) error {
	control := http.NewResponseController(w)
	_ = control.SetReadDeadline(time.Now().Add(lineTimeout))
	text, err := io.ReadAll(io.LimitReader(r.Body, maxSettings+1))
	if err == nil && len(text) > maxSettings {
		err = errLineTooLong
	}
	if err != nil {
		return lineError(err)
	}
	_ = control.SetReadDeadline(time.Time{})
	g, err := a.rule(text)
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(ruleAnswer{ // the gateway may have left
		Name:          g.rule.Name,
		ReadsBody:     g.readsBody,
		MaxBody:       cmp.Or(g.rule.MaxBody, middleware.DefaultMaxBody),
		BodyTimeoutMS: cmp.Or(g.rule.BodyTimeout, middleware.DefaultBodyTimeout).Milliseconds(),
		WaitMS:        g.rule.Wait.Milliseconds(),
		FenceHeader:   cmp.Or(g.rule.FenceHeader, middleware.DefaultFenceHeader),
		OnClientAbort: cmp.Or(g.settings.OnClientAbort, "run"),
		OnNoQuorum:    cmp.Or(g.settings.OnNoQuorum, "refuse"),
		NoQuorum:      cmp.Or(g.rule.NoQuorumStatus, http.StatusConflict),
		AllowUpgrade:  g.rule.AllowUpgrade,
	})
	return nil
}
