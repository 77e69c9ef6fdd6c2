package clients

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"

	"github.com/caddy-redlock/caddy-redlock/internal/engine"
	"github.com/caddy-redlock/caddy-redlock/internal/tests/verdicts"
)

// TestVerdicts: the error of each language's client for each refusal of an agent. The shell's client has exit codes.
func TestVerdicts(t *testing.T) {
	t.Parallel()
	for _, v := range verdicts.All {
		agent := &realAgent{socket: refusingAgent(t, v.Err(nil))}
		for _, language := range installed(t) {
			want := map[string]string{"LockHeld": `refused [1-9]\d*`, "LockUnavailable": `unavailable [1-9]\d*`}[v.Client]
			if folder(language) == "shell" && v.Exit != 75 {
				want = fmt.Sprintf("error %d .+", v.Exit)
			}
			t.Run(language+"/"+v.Seen, func(t *testing.T) {
				if got := agent.start(t, language, "WAIT=0", "hold", "k").expect(t, ""); !regexp.MustCompile("^(?:" + want + ")$").MatchString(got) {
					t.Errorf("%q was printed, want %q", got, want)
				}
			})
		}
	}
}

// TestForeignResult: a client has an error of its own for a result that isn't JSON, since a program in Go may have remembered it.
func TestForeignResult(t *testing.T) {
	t.Parallel()
	const refusal = `{"title":"The work is done","status":409,"detail":"its result is remembered","result":"paid 42"}`
	agent := &realAgent{socket: serveSocket(t, answering(fmt.Sprintf("HTTP/1.1 409 Conflict\r\nRedlock-Agent: 1\r\nRedlock-Outcome: done\r\nContent-Length: %d\r\n\r\n%s", len(refusal), refusal)))}
	for _, language := range []string{"node", "php", "python", "ruby"} {
		if has(t, language) {
			agent.start(t, language, "", "once", "k").expect(t, "error the remembered result of this key isn't JSON: another kind of client wrote it: paid 42")
		}
	}
}

// refusingAgent returns the socket of an agent whose calls end with an error.
func refusingAgent(t *testing.T, err error) (path string) {
	t.Helper()
	w := httptest.NewRecorder()
	engine.RefusalOf(t.Context(), err).Write(w)
	var response strings.Builder
	w.Header().Set("Redlock-Agent", "1")
	_ = w.Header().Write(&response)
	return serveSocket(t, answering(fmt.Sprintf("HTTP/1.1 %d %s\r\n%sContent-Length: %d\r\n\r\n%s", w.Code, http.StatusText(w.Code), &response, w.Body.Len(), w.Body)))
}
