package e2e

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/caddy-redlock/caddy-redlock/middleware"
	"github.com/caddy-redlock/caddy-redlock/redlock"
)

// clientsOf returns the program that sends requests on 42 with the HTTP client of the language in which an upstream is written.
func clientsOf(upstream, addrs string) *exec.Cmd {
	switch upstream {
	case "express", "koa", "fastify":
		return exec.Command("node", "clients.js", addrs)
	case "flask", "django", "bottle", "tornado":
		return exec.Command("/usr/bin/python3", "clients.py", addrs)
	case "rack", "sinatra":
		return exec.Command("ruby", "clients.rb", addrs)
	case "php", "symfony":
		return exec.Command("php", "clients.php", addrs)
	}
	return exec.Command("java", "-XX:TieredStopAtLevel=1", "-cp", strings.Join(tomcatJars, ":"), "Clients.java", addrs)
}

// TestUpstreamClients sends requests as the languages' own clients write them: none is refused, and all are on 42.
func TestUpstreamClients(t *testing.T) {
	var seen sync.Map
	for _, name := range needUpstreams(t) {
		probe := clientsOf(name, "")
		if _, again := seen.LoadOrStore(strings.Join(probe.Args, " "), true); again {
			continue
		}
		t.Run(strings.Join(slices.DeleteFunc(probe.Args, func(arg string) bool { return !strings.Contains(strings.ToLower(arg), "clients.") }), ""), func(t *testing.T) {
			addrs := make(map[string]string)
			for at, f := range formats {
				locker, err := redlock.Open([]string{"memory://"})
				if err != nil {
					t.Fatal(err)
				}
				var mu sync.Mutex
				var got []string
				inside := middleware.New(locker, f.template, middleware.Rule{})(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
					turn, _ := middleware.TurnFromContext(r.Context())
					mu.Lock()
					got = append(got, turn.Key)
					mu.Unlock()
				}))
				server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					recorder := httptest.NewRecorder()
					if inside.ServeHTTP(recorder, r); recorder.Code != http.StatusOK {
						t.Errorf("%s: %d %s\n%s %s %v", at, recorder.Code, recorder.Body, r.Method, r.RequestURI, r.Header)
					}
				}))
				addrs[at] = server.Listener.Addr().String()
				t.Cleanup(func() {
					server.Close()
					_ = locker.Close()
					if !slices.Equal(got, []string{"42"}) {
						t.Errorf("%s: served with the keys %q, want one request on 42", at, got)
					}
				})
			}
			text, err := json.Marshal(addrs)
			if err != nil {
				t.Fatal(err)
			}
			cmd := clientsOf(name, string(text))
			inUpstreams(t, cmd, name)
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}
