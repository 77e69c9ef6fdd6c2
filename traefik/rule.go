package traefik

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"
)

// rule has the settings of a middleware, which only the agent understands, and the agent's response about them.
type rule struct {
	settings map[string]interface{} // by name without case, underscores and hyphens
	line     []byte                 // the settings as the agent gets them
	opening  []byte                 // the beginning of a request for a turn, with the settings
	mu       sync.Mutex
	told     *ruleInfo // nil until the agent has been asked
}

type ruleInfo struct {
	ReadsBody     bool   `json:"reads_body"`
	MaxBody       int64  `json:"max_body"`
	BodyTimeoutMs int64  `json:"body_timeout_ms"`
	WaitMs        int64  `json:"wait_ms"`
	FenceHeader   string `json:"fence_header"`
	OnClientAbort string `json:"on_client_abort"`

	patience time.Duration // how long the agent may take to answer a request without a body that it reads
}

func newRule(a *agent, settings map[string]interface{}) (*rule, error) {
	line, err := json.Marshal(settings) // sorted by name: equal settings are equal bytes
	if err != nil {
		return nil, fmt.Errorf("the settings can't be sent to the agent: %w", err)
	}
	r := &rule{settings: map[string]interface{}{}, line: append(line, '\n')}
	r.opening = a.opening("/v1/turn", r.line)
	for name, value := range settings {
		r.settings[plain(name)] = value
	}
	return r, nil
}

var separators = strings.NewReplacer("_", "", "-", "")

// plain makes onNoQuorum, on_no_quorum and on-no-quorum one name, as for the agent.
func plain(name string) string { return strings.ToLower(separators.Replace(name)) }

// text returns a setting that the plugin needs itself, such as while the agent is away.
func (r *rule) text(name string) string {
	value, ok := r.settings[plain(name)]
	if !ok {
		return ""
	}
	return fmt.Sprint(value)
}

func (r *rule) noQuorumStatus() int {
	status, err := strconv.Atoi(r.text("no_quorum_status"))
	if err != nil || status < 400 || status > 599 {
		return http.StatusConflict
	}
	return status
}

func (r *rule) fenceHeader() string {
	if name := r.text("fence_header"); name != "" {
		return name
	}
	return "Fencing-Token"
}

func (r *rule) info() *ruleInfo {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.told
}

// refusedRule is the agent's judgment that the settings are wrong.
type refusedRule struct{ detail string }

func (e *refusedRule) Error() string { return e.detail }

// loadWithin is how long the agent may take to judge a rule.
const loadWithin = 2 * time.Second

func (r *rule) load(ctx context.Context, a *agent) error {
	ctx, cancel := context.WithTimeout(ctx, loadWithin)
	defer cancel()
	c, err := a.dial(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = c.net.Close() }()
	end, _ := ctx.Deadline()
	_ = c.net.SetDeadline(end)
	if _, err := c.net.Write(append(a.opening("/v1/rule", r.line), lastChunk...)); err != nil {
		return err
	}
	response, err := c.response()
	if err != nil {
		return err
	}
	text, err := io.ReadAll(io.LimitReader(response.Body, 64<<10))
	if err != nil {
		return fmt.Errorf("the response of the agent: %w", err)
	}
	if response.StatusCode == http.StatusBadRequest {
		return &refusedRule{detail: detailOf(text)}
	}
	if response.StatusCode != http.StatusOK {
		return errors.New("the agent answers " + response.Status + ": " + detailOf(text))
	}
	info := &ruleInfo{}
	if err := json.Unmarshal(text, info); err != nil {
		return fmt.Errorf("the response of the agent: %w", err)
	}
	info.patience = time.Duration(info.WaitMs)*time.Millisecond + silence
	r.mu.Lock()
	defer r.mu.Unlock()
	r.told = info
	return nil
}

// detailOf returns the detail of a problem, or its title.
func detailOf(text []byte) string {
	problem := struct {
		Title  string `json:"title"`
		Detail string `json:"detail"`
	}{}
	if err := json.Unmarshal(text, &problem); err != nil || problem.Detail == "" {
		return problem.Title
	}
	return problem.Detail
}
