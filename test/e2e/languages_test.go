package e2e

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/caddy-redlock/caddy-redlock/middleware"
	"github.com/caddy-redlock/caddy-redlock/redlock"
)

// clientsOf returns the program that sends requests on 42 with the HTTP client of the language in which an upstream is written, or nil.
func clientsOf(upstream, addrs string) *exec.Cmd {
	framework, _ := named(upstream)
	switch program := upstreams[framework]("").Args[0]; filepath.Base(program) {
	case "node":
		return exec.Command("node", "clients.js", addrs)
	case "python3":
		return exec.Command(program, "clients.py", addrs)
	case "rackup":
		return exec.Command("ruby", "clients.rb", addrs)
	case "php":
		return exec.Command("php", "clients.php", addrs)
	case "java":
		return exec.Command("java", "-XX:TieredStopAtLevel=1", "-cp", strings.Join(tomcatJars, ":"), "Clients.java", addrs)
	}
	return nil
}

// TestUpstreamClients sends requests as the languages' own clients write them: none is refused, and all are on 42.
func TestUpstreamClients(t *testing.T) {
	t.Parallel()
	var seen sync.Map
	for _, name := range needUpstreams(t) {
		probe := clientsOf(name, "")
		if probe == nil {
			continue
		}
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
