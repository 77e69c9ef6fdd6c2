package middleware

import (
	"net/http"
	"time"

	"github.com/caddy-redlock/caddy-redlock/internal/base/parts"
	"github.com/caddy-redlock/caddy-redlock/redlock"
)

// serializer is the parts.Serializer of a rule.
type serializer struct{ rule *compiled }

func (s serializer) Rule() Rule { return s.rule.Rule }

func (s serializer) Serve(locker *redlock.Locker, w http.ResponseWriter, r *http.Request, next func(http.ResponseWriter, *http.Request) error) error {
	req := &serving{rule: s.rule, w: w, r: r, next: next, arrived: time.Now()}
	req.turn.locker, req.turn.Rule, req.turn.concurrency = locker, s.rule.Name, s.rule.Concurrency[0]
	req.turn.keyed, req.turn.dryRun = s.rule.derive != nil, s.rule.DryRun
	req.turn.outer, _ = r.Context().Value(turnKey{}).(*Turn)
	dropRefusal(w.Header())
	defer req.observeUnlocked()
	defer req.turn.noteIn(r.Context())
	if body := req.receive(); body != nil {
		defer body.end()
	}
	return req.serve()
}

func (s serializer) Explain(r *http.Request) parts.Explanation { return s.rule.explain(r) }

func (s serializer) ReadsBody() bool { return s.rule.readsBody }

func (s serializer) NeedsBody() bool {
	webhooks := len(s.rule.verifiers) > 0 || s.rule.Preset != "" && !s.rule.identifiesByHeader()
	return s.rule.needsBody && !webhooks && s.rule.OnMissingKey != Pass
}

func (s serializer) Global() string { return s.rule.global() }

func (s serializer) Warnings() []string { return s.rule.warnings() }

func (s serializer) UpstreamHeaders() []string {
	if s.rule.KeyHeader == "" {
		return []string{s.rule.FenceHeader, SlotHeader}
	}
	return []string{s.rule.FenceHeader, SlotHeader, s.rule.KeyHeader}
}
