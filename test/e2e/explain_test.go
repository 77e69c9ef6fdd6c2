package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Neither the masters of this configuration nor its upstream can be reached: explain does not connect to them.
const explainConfig = `{
	redlock {
		masters redis://127.0.0.1:1 redis://127.0.0.1:2 {env.REDLOCK_TEST_NONE}
		password {env.REDLOCK_TEST_NONE}
	}
}
http://:8080 {
	encode gzip
	uri strip_prefix /api
	request_header X-Shop main
	redlock /orders/*/pay order:{path.1} {
		wait 2s
		held_status 429
	}
	redlock /hooks/stripe* {
		preset stripe
	}
	@inside remote_ip 10.0.0.0/8
	redlock @inside inside
	redlock /client client:{client_ip}:{uuid}:{env.REDLOCK_TEST_HOME}
	redlock /hooks/signed signed:{body.id} {
		verify github {file./nonexistent/s3cret}
	}
	handle /both* {
		redlock shop:{header.X-Shop}
		redlock item:{body.items[].id}
	}
	basic_auth /private* {
		bob $2a$04$mKAGVVV4Wb3fru9isPg1fOWnKIIznoqqp.Hu1MX7bDNOAZK8wwXOu
	}
	reverse_proxy 127.0.0.1:1
}
guarded.example.com {
	redlock_guard
	redlock /orders/* order:{path.1}
	reverse_proxy 127.0.0.1:1
}
shop.example.com {
	redlock refund:{header.X-Order}
	redlock /orders/*/pay order:{path.1}
	respond "done"
}
`

func TestCaddyExplain(t *testing.T) {
	needTime(t)
	t.Parallel()
	folder := t.TempDir()
	config, body, form := filepath.Join(folder, "Caddyfile"), filepath.Join(folder, "body"), filepath.Join(folder, "form")
	for file, text := range map[string]string{config: explainConfig, body: `{"id":"evt_1","data":{"object":{"customer":"cus_1"}}}`, form: "id=1\n"} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	empty := caddyCommand(t, "redlock", "explain", "http://localhost:8080/")
	empty.Dir = t.TempDir()
	if text, code := output(t, empty); code != 1 || !strings.Contains(text, "no configuration: there is no Caddyfile in this folder; use --config") {
		t.Errorf("without configuration: exit code %d\n%s", code, text)
	}
	for _, test := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"http://localhost:8080/client"}, 0,
			"note      {http.vars.client_ip} can't be known: the client is assumed to be at 127.0.0.1\n" +
				"note      {http.request.uuid} can't be known: each request has its own\n" +
				"note      {env.REDLOCK_TEST_HOME} can't be known: it is read on this machine, not where the server runs\n" +
				"rule      redlock client:{http.vars.client_ip}:{http.request.uuid}:{env.REDLOCK_TEST_HOME}\n"},
		{[]string{"-d", "@" + form, "http://localhost:8080/hooks/signed"}, 0, "rule      redlock signed:{body.id}\nkey       signed:1\n"},
		{[]string{"-d", "@" + body, "http://localhost:8080/hooks/stripe"}, 0, "note      the body is sent as a form, as curl does; for JSON add -H 'Content-Type: application/json'\n"},
		{[]string{"-X", "POST", "http://localhost:8080/api/orders/42/pay"}, 0,
			"note      the handler encode is not run\n" +
				"note      the matcher remote_ip can't be known: the client is assumed to be at 127.0.0.1\n" +
				"note      the signature can't be checked: verify github: the placeholder of secret 1 is unknown or empty (is the variable set? does the file exist, and is its path absolute?)\n" +
				"warning   /api/orders/42/pay/ reaches 0 of these rules, and some upstreams serve it as /api/orders/42/pay: match more broadly (docs/matchers.md)\n" +
				"warning   /api/orders/42/pay;x reaches 0 of these rules, and some upstreams serve it as /api/orders/42/pay: match more broadly (docs/matchers.md)\n" +
				"rule      redlock order:{http.request.uri.path.1}\nkey       order:42\nif held   waits 2s, then 429\n"},
		{[]string{"-H", "Content-Type: application/json", "-d", "@" + body, "http://localhost:8080/hooks/stripe"}, 0,
			"rule      redlock preset stripe\nkey       stripe:post:cus_1\ndelivery  evt_1\nhost      localhost\nplace     POST /hooks/stripe\nif held   waits 5s, then 423\n"},
		{[]string{"-X", "POST", "http://localhost:8080/api/orders/42/pay"}, 0,
			"warning   some upstreams serve these as /api/orders/42/pay, and they don't reach all of these rules: add the directive redlock_guard (docs/matchers.md)\n"},
		{[]string{"-X", "POST", "https://guarded.example.com/orders/42/pay"}, 0, "key       order:42\nif held   waits 0s, then 423\n"},
		{[]string{"-d", "id=1", "http://localhost:8080/hooks/signed"}, 0, "key       signed:1\nif held   waits 0s, then 423\n"},
		{[]string{"-d", `{"id":1}`, "http://localhost:8080/hooks/stripe#x"}, 0, "note      the fragment (# and what follows) is not part of a request\nnote      the body is sent as a form, as curl does; for JSON add -H 'Content-Type: application/json'\n"},
		{[]string{"-d", "id=evt_2", "http://localhost:8080/hooks/stripe"}, 0, "refused   415 unsupported_body: "},
		{[]string{"-H", "Content-Type: application/json", "-d", `{"items":[{"id":2},{"id":1}]}`, "http://localhost:8080/both"}, 0,
			"rule      redlock shop:{http.request.header.X-Shop}\nkey       shop:main\nif held   waits 0s, then 423\nby hand   redlock run 'shop:main' -- command\n" +
				"rule      redlock item:{body.items[].id}\nkey       item:1\nkey       item:2\nif held   waits 0s, then 423\n"},
		{[]string{"http://localhost:8080/both"}, 0, "refused   400 missing_key: key part {body.items[].id}: missing or empty\n"},
		{[]string{"-H", "X-Order: 7", "https://shop.example.com/"}, 0, "key       refund:7\n"},
		{[]string{"-X", "POST", "-H", "X-Order: 7", "https://shop.example.com/orders/42/pay"}, 0, // the rule for all refuses x:orders/42/pay
			"add the directive redlock_guard (docs/matchers.md)\n          /%5Corders/42/pay\n"},
		{[]string{"http://localhost:8080/other"}, 1, "no redlock rule applies: no matcher matches this request, or another handler answered 200 first"},
		{[]string{"http://localhost:8080/private"}, 1, "another handler answered 401 first"},
		{[]string{"http://localhost:9999/"}, 1, "no server of the configuration listens on port 9999"},
		{[]string{"-H", "X-Order", "https://shop.example.com/"}, 1, `header "X-Order": want Name: value`},
		{[]string{"/orders"}, 1, "want a complete URL"},
	} {
		args := append([]string{"redlock", "explain", "--config", config, "--adapter", "caddyfile"}, test.args...)
		text, code := output(t, caddyCommand(t, args...))
		wrong := strings.Contains(test.args[len(test.args)-1], "guarded") && strings.Contains(text, "warning") || strings.Contains(text, " x:orders")
		if code != test.code || wrong || !strings.Contains(text, test.want) {
			t.Errorf("caddy %s: exit code %d\n%swant %d and\n%s", strings.Join(args, " "), code, text, test.code, test.want)
		}
	}
}

// Without a URL, explain prints what stands before each handler that may act, and with a file of routes, what becomes of each.
func TestCaddyExplainCoverage(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	config, routes := filepath.Join(folder, "Caddyfile"), filepath.Join(folder, "routes")
	for file, text := range map[string]string{config: `pay.example.com {
	redlock /orders/*/pay order:{path.1:int} {
		name order
	}
	redlock_require {
		except /login?next
		except GET HEAD /health
	}
	reverse_proxy 127.0.0.1:1
}
http://open.example.com {
	redlock /orders/*/pay order:{path.1:int}
	reverse_proxy 127.0.0.1:1
}
`, routes: `# of the application
GET|HEAD /orders/{order}
POST /orders/{order}/pay
POST /orders/<int:id>/refund
PUT,PATCH /orders/:id
POST /login
`} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, test := range []struct {
		args []string
		code int
		want string
	}{
		{nil, 0, `:443 pay.example.com: reverse_proxy
          the rules order and redlock_require before it; GET, HEAD and OPTIONS without a body pass; except /login?next, GET HEAD /health
:80 open.example.com: reverse_proxy
          OPEN: the rules order:{path.1:int} and no redlock_require before it: a request that no matcher takes comes to it
`},
		{[]string{"--routes", routes, "https://pay.example.com"}, 0, `GET     /orders/{order}                          no lock
HEAD    /orders/{order}                          no lock
POST    /orders/{order}/pay                      order: locks order:1
POST    /orders/<int:id>/refund                  refused 403 unlocked by redlock_require: no rule has taken a lock for it
PUT     /orders/:id                              refused 403 unlocked by redlock_require: no rule has taken a lock for it
PATCH   /orders/:id                              refused 403 unlocked by redlock_require: no rule has taken a lock for it
POST    /login                                   no lock
`},
		{[]string{"-X", "POST", "https://pay.example.com/cart"}, 0, "refused   403 unlocked by redlock_require: no rule has taken a lock for it\n"},
		{[]string{"https://pay.example.com/health"}, 0, "passed    without a lock by redlock_require: except names it, or its method changes nothing\n"},
		{[]string{"-X", "POST", "https://pay.example.com/orders/1/pay"}, 0, "rule      redlock order\nkey       order:1\nif held   waits 0s, then 423\n"},
		{[]string{"--routes", routes}, 1, "want the URL of the site"},
	} {
		text, code := output(t, caddyCommand(t, append([]string{"redlock", "explain", "--config", config}, test.args...)...))
		if code != test.code || !strings.Contains(text, test.want) {
			t.Errorf("%s: exit code %d\n%s\nwant\n%s", test.args, code, text, test.want)
		}
	}
}
