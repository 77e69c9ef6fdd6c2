package caddyredlock

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/caddy-redlock/caddy-redlock/middleware"
)

// check makes the rule of the configuration, or says what is wrong with it as far as the app need
// not be known for that.
func (h *Handler) check() error {
	var preset middleware.Preset
	var err error
	if h.Preset != "" {
		if preset, err = middleware.PresetOf(h.Preset); err != nil {
			return err
		}
	}
	if err := h.parseKeys(preset.Key); err != nil {
		return err
	}
	wait := cmp.Or(time.Duration(h.Wait), preset.Wait)
	h.rule = &middleware.Rule{
		Wait:           max(wait, 0),
		TTL:            time.Duration(h.TTL),
		MaxHold:        time.Duration(h.MaxHold),
		MaxWaiters:     h.MaxWaiters,
		FenceHeader:    h.FenceHeader,
		HeldStatus:     cmp.Or(h.HeldStatus, preset.HeldStatus),
		NoQuorumStatus: h.NoQuorumStatus,
		HashKeys:       h.HashKeys,
		MaxBody:        cmp.Or(h.MaxBody, preset.MaxBody),
		BodyTimeout:    time.Duration(h.BodyTimeout),
		BodyBudget:     middleware.NewBudget(math.MaxInt64), // the app's is not known yet
		ReplayWindow:   time.Duration(h.ReplayWindow),
		DedupeStatus:   h.DedupeStatus,
		AllowUpgrade:   h.AllowUpgrade,
		DryRun:         h.DryRun,
	}
	if h.rule.Dedupe, err = dedupe(cmp.Or(h.Dedupe, preset.Dedupe)); err != nil {
		return err
	}
	if h.Verify != nil {
		if err := h.Verify.check(); err != nil {
			return err
		}
	}
	for _, choice := range []struct {
		option, value, otherwise, special string
		into                              *bool
	}{
		{"on_missing_key", h.OnMissingKey, "refuse", "pass", &h.rule.PassMissingKey},
		{"on_no_quorum", h.OnNoQuorum, "refuse", "pass", &h.rule.PassNoQuorum},
		{"on_client_abort", cmp.Or(h.OnClientAbort, "run"), "cancel", "run", &h.rule.RunToEnd},
	} {
		switch choice.value {
		case choice.special:
			*choice.into = true
		case "", choice.otherwise:
		default:
			return fmt.Errorf("%s %q: want %s or %s", choice.option, choice.value, choice.otherwise, choice.special)
		}
	}
	return h.rule.Check()
}

func (h *Handler) parseKeys(preset string) (err error) {
	keys := h.Keys
	if len(keys) == 0 && preset != "" {
		keys = []string{preset}
	}
	if len(keys) == 0 {
		return errors.New("key: want at least one template, such as order:{http.request.uri.path.1}")
	}
	h.keys, err = middleware.ParseTemplates(keys, placeholder)
	return err
}

func dedupe(template string) (middleware.KeyFunc, error) {
	if template == "" || template == "off" {
		return nil, nil
	}
	return middleware.ParseDedupe(template, placeholder)
}
