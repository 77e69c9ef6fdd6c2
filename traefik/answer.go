package traefik

import (
	"encoding/json"
	"math/rand"
	"net/http"
	"strconv"
	"time"
)

// problem is the body of an answer (RFC 9457); docs/problems.md explains the types.
type problem struct {
	Type   string `json:"type"`
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail,omitempty"`
}

var titles = map[string]string{
	"held":        "Another request with the same key is in progress",
	"no_quorum":   "The lock service can't be reached",
	"missing_key": "The request lacks a value that its lock key is made of",
	"bad_key":     "No certain lock key can be made of the request",
	"lost":        "The lock was lost while the request ran; its outcome is unknown",
	"canceled":    "The client left",
	"upgrade":     "Requests for another protocol are not served here",
}

// refuse answers a request that is not served. The detail names at most a placeholder: never a key, a value or a master.
func refuse(w http.ResponseWriter, status int, outcome string, retry time.Duration, detail string) {
	h := w.Header()
	h.Set("Cache-Control", "no-store")
	h.Set("Redlock-Outcome", outcome)
	h.Set("Content-Type", "application/problem+json")
	if retry > 0 {
		h.Set("Retry-After", strconv.Itoa(int(retry/time.Second)))
	}
	w.WriteHeader(status)
	body, _ := json.Marshal(&problem{Type: "https://github.com/caddy-redlock/caddy-redlock/blob/main/docs/problems.md#" + outcome, Title: titles[outcome], Status: status, Detail: detail})
	_, _ = w.Write(append(body, '\n')) // the client may have left
}

// spread returns a time in whole seconds, at least one, with up to a half more at random, so that clients that were refused
// together don't come back together.
func spread(d time.Duration) time.Duration {
	seconds := int64(longer(time.Second, d+time.Second-1) / time.Second)
	return time.Duration(seconds+rand.Int63n(1+(seconds+1)/2)) * time.Second
}
