package e2e

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/internal/engine"
	"github.com/caddy-redlock/caddy-redlock/middleware"
	"github.com/caddy-redlock/caddy-redlock/redlock"
)

// upstreams has the commands that start real frameworks, which `make upstreams` installs. Each answers a request with what it reads
// from it by its own means, as JSON with the names of readings.
var upstreams = map[string]func(port string) *exec.Cmd{
	"express": node, "express4": node, "koa": node, "fastify": node, "hapi": node, "polka": node, "restify": node, "node": node,
	"hono": web, "h3": web, "formidable": web, "koa-bodyparser": web,
	"flask": python, "gunicorn": python, "waitress": python, "django": python, "bottle": python, "tornado": python,
	"uwsgi": func(port string) *exec.Cmd {
		return exec.Command("uwsgi", "--need-plugin", "python3", "--http-socket", "127.0.0.1:"+port, "--threads", "4", "--add-header", "Connection: close", "--disable-logging", "--wsgi-file", "python.py", "--pyargv", "uwsgi "+port)
	},
	"aiohttp": async, "falcon": async, "starlette": async,
	"fastapi": frameworks, "quart": frameworks, "cherrypy": frameworks, "webob": frameworks, "pyramid": frameworks, "twisted": frameworks,
	"rack": rack("webrick"), "sinatra": rack("webrick"), "grape": rack("webrick"), "rails": rack("puma"), "puma": rack("puma"),
	"mojolicious": perl, "dancer2": perl, "catalyst": perl, "plack": perl, "cgi": perl,
	"php": php("php.php"), "symfony": php("symfony.php"), "slim": php("slim.php"),
	"nethttp": golang, "chi": golang, "gorilla": golang, "gin": golang, "echo": golang, "fiber": golang,
	"tomcat": func(port string) *exec.Cmd {
		return exec.Command("java", "-XX:TieredStopAtLevel=1", "-cp", strings.Join(tomcatJars, ":"), "Tomcat.java", port)
	},
	"jetty": jetty, "spring": jetty,
}

var tomcatJars = []string{"/usr/share/java/tomcat10-embed-core.jar", "/usr/share/java/tomcat10-annotations-api.jar",
	"/usr/share/java/jackson-core.jar", "/usr/share/java/jackson-databind.jar", "/usr/share/java/jackson-annotations.jar"}

func node(port string) *exec.Cmd   { return exec.Command("node", "node.js", "", port) }
func python(port string) *exec.Cmd { return exec.Command("/usr/bin/python3", "python.py", "", port) }
func web(port string) *exec.Cmd    { return exec.Command("node", "web.js", "", port) }
func async(port string) *exec.Cmd  { return exec.Command("/usr/bin/python3", "async.py", "", port) }
func frameworks(port string) *exec.Cmd {
	return exec.Command("/usr/bin/python3", "frameworks.py", "", port)
}
func golang(port string) *exec.Cmd { return exec.Command("../../bin/upstreams/go", "", port) }
func perl(port string) *exec.Cmd {
	return exec.Command("plackup", "-s", "HTTP::Server::PSGI", "-E", "deployment", "-o", "127.0.0.1", "-p", port, "perl.psgi")
}
func php(script string) func(port string) *exec.Cmd {
	return func(port string) *exec.Cmd { return exec.Command("php", "-S", "127.0.0.1:"+port, script) }
}
func rack(server string) func(port string) *exec.Cmd {
	return func(port string) *exec.Cmd {
		return exec.Command("rackup", "-q", "-s", server, "-o", "127.0.0.1", "-p", port, "rack.ru")
	}
}
func jetty(port string) *exec.Cmd {
	jars, _ := filepath.Glob("/usr/share/java/jetty9-*.jar") // the pattern is right
	more := []string{"servlet-api", "spring3-web", "spring3-core", "spring3-beans", "spring3-context", "commons-logging"}
	for _, name := range more {
		jars = append(jars, "/usr/share/java/"+name+".jar")
	}
	return exec.Command("java", "-XX:TieredStopAtLevel=1", "-cp", strings.Join(jars, ":"), "Jetty.java", "", port)
}

// needUpstreams returns the names of the upstreams to test: those that $UPSTREAMS names, or all, and more. It skips the test if $UPSTREAMS is
// not set.
func needUpstreams(t *testing.T, more ...string) []string {
	t.Helper()
	names := strings.Fields(os.Getenv("UPSTREAMS"))
	if len(names) == 0 {
		t.Skip("needs real upstreams: make upstreams")
	}
	if names[0] == "all" {
		names = more
		for name := range upstreams {
			names = append(names, name)
		}
		for proxy := range between {
			for _, name := range []string{"express", "flask", "php", "rack", "tomcat"} {
				names = append(names, name+"+"+proxy)
			}
		}
		slices.Sort(names)
	}
	return names
}

// startUpstream runs an upstream until the end of the test, and returns its address, or that of the proxy in front of it.
func startUpstream(t *testing.T, name string) string {
	t.Helper()
	name, proxy := named(name)
	if upstreams[name] == nil {
		t.Fatalf("%q is no upstream", name)
	}
	addr := freeAddr(t)
	_, port, _ := net.SplitHostPort(addr)
	cmd := upstreams[name](port)
	for i, arg := range cmd.Args {
		if arg == "" {
			cmd.Args[i] = name
		}
	}
	inUpstreams(t, cmd, name)
	startProgram(t, name, cmd, addr)
	if proxy != "" {
		return startBetween(t, proxy, addr)
	}
	return addr
}

// inUpstreams lets a program run in internal/upstreams, with the modules that are installed for it.
func inUpstreams(t *testing.T, cmd *exec.Cmd, name string) {
	t.Helper()
	dir, err := filepath.Abs("../upstreams")
	if err != nil {
		t.Fatal(err)
	}
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "NODE_PATH="+filepath.Join(dir, "../../bin/upstreams/node_modules"), "FRAMEWORK="+name, "PYTHONDONTWRITEBYTECODE=1", "RACK_ENV=production")
}

// readings has what an upstream reads, by kind. A list has values of which the upstream would take one.
type readings map[string]any

func parseReadings(body string) readings {
	var r readings
	if json.Unmarshal([]byte(body), &r) != nil {
		return nil
	}
	return r
}

// of returns the values of these kinds.
func (r readings) of(kinds ...string) (values []string) {
	for _, kind := range kinds {
		values = appendValues(values, r[kind])
	}
	return values
}

func appendValues(values []string, v any) []string {
	switch v := v.(type) {
	case string:
		if v != "" { // an empty string is no value
			values = append(values, v)
		}
	case []any:
		for _, element := range v {
			values = appendValues(values, element)
		}
	}
	return values
}

// lockedProxy returns a proxy in net/http with a rule in front of it. It passes requests without a key on, and answers with the keys in the
// header Test-Keys.
func lockedProxy(t *testing.T, template, upstream string, inside func(*http.Response) error) *httptest.Server {
	t.Helper()
	locker, err := redlock.Open([]string{"memory://"})
	if err != nil {
		t.Fatal(err)
	}
	proxy := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(&url.URL{Scheme: "http", Host: upstream})
			r.Out.URL.RawQuery = r.In.URL.RawQuery // as Caddy does
		},
		ModifyResponse: inside,
		ErrorHandler:   func(w http.ResponseWriter, _ *http.Request, _ error) { w.WriteHeader(http.StatusBadGateway) },
	}
	server := httptest.NewServer(middleware.New(locker, template, middleware.Rule{OnMissingKey: middleware.Pass})(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		turn, _ := middleware.TurnFromContext(r.Context())
		w.Header().Set("Test-Keys", turn.Key)
		proxy.ServeHTTP(w, r)
	})))
	t.Cleanup(func() {
		server.Close()
		_ = locker.Close()
	})
	return server
}

// folded returns the key that a value makes.
func folded(t *testing.T, value string) string {
	t.Helper()
	template, err := engine.ParseTemplate("{value}", func(string) (middleware.KeyFunc, error) {
		return func(*http.Request) (string, error) { return value, nil }, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	key, _ := template.Key(nil)
	return key
}

// sendRaw sends a request unchanged on a connection of its own. Without a response it returns an empty one.
func sendRaw(t *testing.T, addr, text string) received {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Errorf("%v", err)
		return received{}
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(bound))
	_, _ = io.WriteString(conn, text) // the server may answer before it has read all
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil { // some upstreams just close the connection
		return received{}
	}
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return received{}
	}
	return received{status: response.StatusCode, header: response.Header, body: string(body)}
}

// rawRequest returns the text of an HTTP/1.1 request with these header lines.
func rawRequest(method, target, body string, headers ...string) string {
	text := method + " " + target + " HTTP/1.1\r\nHost: shop.example\r\n"
	for _, header := range headers {
		text += header + "\r\n"
	}
	if method == "POST" {
		text += fmt.Sprintf("Content-Length: %d\r\n", len(body))
	}
	return text + "\r\n" + body
}
