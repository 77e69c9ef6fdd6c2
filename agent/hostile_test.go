package agent_test

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/caddy-redlock/caddy-redlock/agent"
	"github.com/caddy-redlock/caddy-redlock/redlock"
	"github.com/caddy-redlock/caddy-redlock/redlock/simnet"
)

// TestBrokenFrames: a gateway whose frames of a body are wrong is told so, whether the rule reads the body or not.
func TestBrokenFrames(t *testing.T) {
	locker := newLocker(t, live)
	client := serve(t, "unix", agent.New(locker))
	const line = `{"method":"POST","target":"/a","host":"shop","header":{"Content-Type":["application/json"]},"length":5,"body":true}` + "\n"
	for _, settings := range []string{`{"key":"a"}`, `{"key":"{body.a}"}`} {
		for name, body := range map[string]string{"no number": "x\n", "negative": "-1\n", "too large": "99999999999\n", "cut": "5\nab"} {
			w := dialWire(t, client)
			w.send("/v1/turn", settings+"\n"+line+body)
			w.end()
			response := w.response()
			text, _ := io.ReadAll(response.Body)
			if response.StatusCode != http.StatusBadRequest {
				t.Errorf("%s, %s: %d %s, want 400", settings, name, response.StatusCode, text)
			}
		}
	}
	requireFree(t, locker, "a")
}

// TestFullAgent: who comes when there are too many clients is told of the limit, and comes in again once one has left.
func TestFullAgent(t *testing.T) {
	client := serve(t, "unix", agent.New(newLocker(t, live), agent.WithMaxClients(1)))
	h := post(t, client, "/v1/lock", `{"key":"a"}`)
	h.first()
	refused := post(t, client, "/v1/lock", `{"key":"b"}`)
	text, _ := io.ReadAll(refused.response.Body)
	if refused.response.StatusCode != http.StatusServiceUnavailable || refused.response.Header.Get("Retry-After") == "" || !strings.Contains(string(text), "at most 1 clients") {
		t.Errorf("%d %s, want 503 that names the limit", refused.response.StatusCode, text)
	}
	refused.close()
	if !refused.response.Close {
		t.Error("the connection stays, and takes the room of the next client")
	}
	h.end()
	for {
		again := post(t, client, "/v1/lock", `{"key":"b"}`)
		code := again.response.StatusCode
		again.close()
		if code == http.StatusOK {
			return
		}
	}
}

// TestGarbage: what isn't a mark is ignored, however much of it comes, and answered by nothing.
func TestGarbage(t *testing.T) {
	inBubble(t, func(t *testing.T, _ *simnet.Net, locker *redlock.Locker, client *http.Client) {
		w := dialWire(t, client)
		w.send("/v1/lock", `{"key":"k"}`+"\n")
		lines := bufio.NewReader(w.response().Body)
		if first, err := lines.ReadString('\n'); err != nil || !strings.Contains(first, `"mark":0`) {
			t.Errorf("%q, %v: want the first line", first, err)
		}
		garbage := strings.Repeat("\x00\r{}z", 13<<10)
		for range 100 {
			if _, err := fmt.Fprintf(w, "%x\r\n%s\r\n", len(garbage), garbage); err != nil {
				t.Fatal(err)
			}
		}
		requireHeld(t, locker, "k")
		w.end()
		if rest, err := io.ReadAll(lines); err != nil || string(rest) != "{\"released\":true}\n" {
			t.Errorf("%q, %v: want only the last line", rest, err)
		}
		requireFree(t, locker, "k")
	})
}
