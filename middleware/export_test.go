package middleware

import (
	"net/http"

	"github.com/caddy-redlock/caddy-redlock/middleware/internal/remember"
)

// CompileFunc is Compile with a function in place of the templates, as NewFunc has it.
func CompileFunc(rule Rule, key KeyFunc) *Serializer { return &Serializer{mustCompile(rule, key.Keys)} }

// KeysOf derives the keys of a request from several templates.
func KeysOf(r *http.Request, texts ...string) ([]string, error) {
	all, err := parseTemplates(texts, Placeholder)
	if err != nil {
		return nil, err
	}
	keys, _, err := all.Keys(r)
	return keys, err
}

// RunningKey is the key of a delivery under a rule that remembers nothing.
func RunningKey(d Delivery) string { return d.runningKey() }

// ResponsesThatWait is how many responses wait for room in memory.
func ResponsesThatWait() int { return remember.Memory.Waiting() }

// ResponseBytes is how much memory responses take.
func ResponseBytes() int64 {
	used, _ := remember.Memory.Usage()
	return used
}

// StatusOf is that of the responses to requests with this outcome, or 0 if they are served.
func StatusOf(outcome Outcome) int { return outcomes[outcome].status }
