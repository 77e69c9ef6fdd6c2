package e2e

import (
	"crypto/hmac"
	"crypto/sha256"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/console"
	"github.com/caddy-redlock/caddy-redlock/internal/tests/redistest"
	"github.com/caddy-redlock/caddy-redlock/redlock/inspect"
)

const recipes = "docs/recipes.md"

// recipe returns the Caddyfile of a recipe, with the masters that the document begins with.
func recipe(t *testing.T, heading string) string {
	t.Helper()
	text := block(t, recipes, heading, "caddyfile")
	if strings.HasPrefix(text, "{\n") {
		return text
	}
	document, err := os.ReadFile(filepath.Join("../..", recipes))
	if err != nil {
		t.Fatal(err)
	}
	_, masters, found := strings.Cut(string(document), "\n```caddyfile\n")
	masters, _, _ = strings.Cut(masters, "```\n")
	if !found || !strings.HasPrefix(masters, "{\n") {
		t.Fatalf("%s doesn't begin with masters", recipes)
	}
	return masters + "\n" + text
}

// runRecipe runs the Caddyfile of a recipe in front of a backend whose requests run until release is called.
func runRecipe(t *testing.T, heading string, replace ...string) (c *caddyProcess, b *backend, release func()) {
	t.Helper()
	text := strings.NewReplacer(replace...).Replace(recipe(t, heading))
	b, release = newHeldBackend(t)
	return runDocumented(t, text, redistest.Start(t, 3), b.Listener.Addr().String()), b, release
}

func (c *caddyProcess) eventuallyWait(t *testing.T, n int) {
	t.Helper()
	eventually(t, fmt.Sprintf("%d requests wait", n), func() bool {
		return askAdmin[console.Locks](t, c, http.MethodGet, "/redlock/locks", http.StatusOK).Waiting == n
	})
}

// requireWithoutBody requires those requests to be served that have no body, and so no key in one.
func requireWithoutBody(t *testing.T, url string) {
	t.Helper()
	for _, method := range []string{http.MethodGet, http.MethodHead, http.MethodDelete} {
		r := request(url)
		r.Method = method
		if a := send(t, r); a.status != http.StatusOK {
			t.Errorf("%s: %d %s", method, a.status, a.body)
		}
	}
}

func TestRecipeOfPayments(t *testing.T) {
	needTime(t)
	t.Parallel()
	c, b, release := runRecipe(t, "One payment at a time", "wait 2s", "wait 8s")
	pay := func(order string) *http.Request {
		return withBody(c.url+"/payments", `{"order":{"id":`+order+`}}`)
	}
	wait := b.holdRequests(t, pay("42"))
	requireStatus(t, send(t, pay("42")), http.StatusLocked)
	requireStatus(t, send(t, pay(`"forty-two"`)), http.StatusBadRequest)
	requireStatus(t, send(t, withBody(c.url+"/payments", `{}`)), http.StatusBadRequest)
	other := sendAll(t, pay("43"))
	eventually(t, "another order is paid at the same time", func() bool { return b.inside() == 2 })
	second := sendAll(t, pay("42"))
	c.eventuallyWait(t, 1)
	release()
	for _, a := range append(append(wait(), other()...), second()...) {
		requireStatus(t, a, http.StatusOK)
	}
	if n := b.servedTotal(); n != 3 {
		t.Errorf("%d payments were served, want 3", n)
	}
	requireWithoutBody(t, c.url+"/payments/7")
}

func TestRecipeOfWebhooks(t *testing.T) {
	file := secretFile(t, secret)
	c, b, release := runRecipe(t, "Webhooks", "./run/secrets/stripe", "."+file, "preset stripe", "preset stripe\n\t\twait 2m")
	deliver := func(id, customer, secret string) *http.Request {
		body := fmt.Sprintf(`{"id":%q,"data":{"object":{"customer":%q}}}`, id, customer)
		now := fmt.Sprint(time.Now().Unix())
		sum := hmac.New(sha256.New, []byte(secret))
		sum.Write([]byte(now + "." + body))
		return withBody(c.url+"/webhooks/stripe", body, "Stripe-Signature", fmt.Sprintf("t=%s,v1=%x", now, sum.Sum(nil)))
	}
	requireStatus(t, send(t, deliver("evt_1", "cus_1", "wrong")), http.StatusUnauthorized)
	wait := b.holdRequests(t, deliver("evt_1", "cus_1", secret))
	repeated := send(t, deliver("evt_1", "cus_1", secret))
	requireStatus(t, repeated, http.StatusConflict)
	if outcome := repeated.header.Get("Redlock-Outcome"); outcome != "duplicate" {
		t.Errorf("outcome %q", outcome)
	}
	next := sendAll(t, deliver("evt_2", "cus_1", secret))
	c.eventuallyWait(t, 1)
	if n := b.inside(); n != 1 {
		t.Errorf("%d deliveries of one customer run at once", n)
	}
	release()
	requireStatus(t, wait()[0], http.StatusOK)
	requireStatus(t, next()[0], http.StatusOK)
}

func TestRecipeOfSNS(t *testing.T) {
	t.Parallel()
	c, b, release := runRecipe(t, "Amazon's SNS", "wait 10s", "wait 2m")
	deliver := func(id string) *http.Request {
		r := withBody(c.url+"/webhooks/sns", fmt.Sprintf(`{"Type":"Notification","MessageId":%q,"Message":"paid"}`, id))
		r.Header.Set("Content-Type", "text/plain; charset=UTF-8")
		return r
	}
	wait := b.holdRequests(t, deliver("22b80b92-fdea-4c2c-8f9d-bdfb0c7bf324"))
	again := sendAll(t, deliver("22b80b92-fdea-4c2c-8f9d-bdfb0c7bf324"))
	c.eventuallyWait(t, 1)
	other := sendAll(t, deliver("dc1e94d9-56c5-5e96-808d-cc7f68faa162"))
	eventually(t, "another message is served meanwhile", func() bool { return b.inside() == 2 })
	requireStatus(t, send(t, deliver("")), http.StatusBadRequest)
	release()
	for _, a := range append(append(wait(), again()...), other()...) {
		requireStatus(t, a, http.StatusOK)
	}
}

func TestRecipeOfWooCommerce(t *testing.T) {
	t.Parallel()
	c, b, release := runRecipe(t, "WooCommerce", "wait 10s", "wait 2m", "max_hold 1m", "max_hold 10m")
	request := func(method, path, customer string) *http.Request {
		cookie := "woocommerce_items_in_cart=1; wp_woocommerce_session_5d41402abc4b2a76b9719d911017c592=" + customer
		r := withBody(c.url+path, "payment_method=cod", "Cookie", cookie, "Content-Type", "application/x-www-form-urlencoded; charset=UTF-8")
		r.Method = method
		return r
	}
	const (
		ann = "t_24a50be699fb53123ba04805a08a1b%7C%7C1795600000%7C%7C1795596400%7C%7C5f2b51ca2f3b4d0dbd3a2c9a7c0a1b2c"
		bob = "9732510%7C1795600000%7C1795513600%7C%24generic%24RBilklGuEDlklAh3dPeHeDzvjieZFKrZD40LZfxu" // as newer versions write it
	)
	wait := b.holdRequests(t, request("POST", "/?wc-ajax=checkout", ann))
	requests := []*http.Request{request("POST", "/?wc-ajax=checkout", ann), request("POST", "/wp-json/wc/store/v1/checkout", ann), request("PUT", "/wp-json/wc/store/v1/cart/items/1", ann)}
	for _, method := range []string{"GET", "HEAD"} {
		for _, query := range []string{"add-to-cart=12", "remove_item=c20ad4d7", "undo_item=c20ad4d7", "remove_coupon=x", "order_again=7", // and as PHP finds them:
			"add-to-cart=5;", "+add-to-cart=5", "add-to-cart%00=5", "add-to-cart[]=5", "x=%zz&add-to-cart=5", "add-to-cart=5%", "add-to-cart=5%zz", "%61dd-to-cart=5", "remove.item=1",
			"remove+item=1", "remove[item=1", "ver=1&add-to-cart=5", "ver=1%26add-to-cart=5", "add-to-cart=5&ver=1", "ver&add-to-cart=5"} {
			r := request(method, "/cart/", ann)
			r.URL.RawQuery = query
			requests = append(requests, r)
		}
	}
	line := sendAll(t, requests...)
	c.eventuallyWait(t, len(requests))
	pass := sendAll(t, request("GET", "/cart/", ann), request("GET", "/wp-includes/css/style.min.css?ver=6.4.2", ann), request("POST", "/?wc-ajax=checkout", bob), withBody(c.url+"/?wc-ajax=add_to_cart", "product_id=12"))
	eventually(t, "pages, styles, other sessions and those without one are served meanwhile", func() bool { return b.inside() == 5 })
	release()
	for _, a := range append(append(wait(), line()...), pass()...) {
		requireStatus(t, a, http.StatusOK)
	}
}

func TestRecipeOfBrowsers(t *testing.T) {
	t.Parallel()
	c, b, release := runRecipe(t, "Browsers of another origin", "wait 2s", "wait 0")
	origin := []string{"Origin", "https://shop.example.com"}
	pay := func() *http.Request { return withBody(c.url+"/payments", `{"order":{"id":42}}`, origin...) }
	wait := b.holdRequests(t, pay())
	refused := send(t, pay())
	requireStatus(t, refused, http.StatusLocked)
	for name, want := range map[string]string{
		"Access-Control-Allow-Origin": origin[1], "Access-Control-Expose-Headers": "Redlock-Outcome, Retry-After", "Redlock-Outcome": "held",
	} {
		if got := refused.header.Values(name); len(got) != 1 || got[0] != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	release()
	requireStatus(t, wait()[0], http.StatusOK)
	ask := request(c.url+"/payments", append(origin, "Access-Control-Request-Method", "POST", "Access-Control-Request-Headers", "content-type")...)
	ask.Method = http.MethodOptions
	requireStatus(t, send(t, ask), http.StatusOK)
	if n := b.servedTotal(); n != 2 {
		t.Errorf("%d requests came through, want the payment and the preflight", n)
	}
	requireWithoutBody(t, c.url+"/payments/7")
}

func TestRecipeOfTransfers(t *testing.T) {
	t.Parallel()
	c, b, release := runRecipe(t, "Several keys at once", "wait 5s", "wait 2m")
	transfer := func(from, to string) *http.Request {
		return withBody(c.url+"/transfers", fmt.Sprintf(`{"from":%q,"to":%q}`, from, to))
	}
	wait := b.holdRequests(t, transfer("a", "b"))
	others := sendAll(t, transfer("b", "a"), transfer("b", "c"), transfer("c", "a"))
	c.eventuallyWait(t, 6) // each for two accounts
	apart := sendAll(t, transfer("d", "e"))
	eventually(t, "other accounts are free", func() bool { return b.inside() == 2 })
	release()
	for _, a := range append(append(wait(), others()...), apart()...) {
		requireStatus(t, a, http.StatusOK)
	}
	requireWithoutBody(t, c.url+"/transfers/7")
}

func TestRecipeOfALine(t *testing.T) {
	t.Parallel()
	c, b, release := runRecipe(t, "A slow backend behind a line", "wait 30s", "wait 2m")
	requireLogLine(t, c, "reports", `"level":"warn"`)
	wait := b.hold(t, c.url+"/reports/1")
	urls := make([]string, 20)
	for i := range urls {
		urls[i] = fmt.Sprintf("%s/reports/%d", c.url, i+2)
	}
	line := postAll(t, urls...)
	c.eventuallyWait(t, len(urls))
	requireStatus(t, post(t, c.url+"/reports/22"), http.StatusServiceUnavailable)
	release()
	for _, a := range append(wait(), line()...) {
		requireStatus(t, a, http.StatusOK)
	}
}

func TestRecipeOfSlots(t *testing.T) {
	t.Parallel()
	c, b, release := runRecipe(t, "At most N at a time", "wait 30s", "wait 2m")
	requests := func(tenant string, n int) []*http.Request { return repeated(n, c.url+"/", "X-Tenant", tenant) }
	wait := b.holdRequests(t, requests("a", 3)...)
	fourth := sendAll(t, requests("a", 1)...)
	c.eventuallyWait(t, 1)
	var others []func() []received
	for i := range 6 { // 21 with the first three
		others = append(others, sendAll(t, requests(fmt.Sprint("b", i), 3)...))
	}
	eventually(t, "20 are at the backend", func() bool { return b.inside() >= 20 })
	c.eventuallyWait(t, 2)
	if n := b.inside(); n != 20 {
		t.Errorf("%d are at the backend at a time, want 20", n)
	}
	release()
	for _, responses := range append(others, wait, fourth) {
		for _, a := range responses() {
			requireStatus(t, a, http.StatusOK)
		}
	}
}

func TestRecipeOfAnLLM(t *testing.T) {
	t.Parallel()
	c, b, release := runRecipe(t, "Five calls to an LLM for each user", "wait 1m", "wait 2m")
	calls := func(user string, n int) []*http.Request { return repeated(n, c.url+"/v1/chat", "X-User", user) }
	five := b.holdRequests(t, calls("ann", 5)...)
	sixth := sendAll(t, calls("ann", 1)...)
	c.eventuallyWait(t, 1)
	other := sendAll(t, calls("bob", 1)...)
	eventually(t, "another user is served", func() bool { return b.inside() == 6 })
	release()
	for _, a := range append(append(five(), sixth()...), other()...) {
		requireStatus(t, a, http.StatusOK)
	}
}

// program returns a program that does what a recipe does with its Locker, and has the functions that it calls.
func program(t *testing.T, heading, functions string) string {
	t.Helper()
	return `package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock"
)

var _ time.Duration // not every recipe has one

func main() {
	locker, err := redlock.Open([]string{"redis://10.0.0.1:6379", "redis://10.0.0.2:6379", "redis://10.0.0.3:6379"})
	if err != nil {
		log.Fatal(err)
	}
	if err := errors.Join(work(context.Background(), locker), locker.Close()); err != nil {
		log.Fatal(err)
	}
}

func work(ctx context.Context, locker *redlock.Locker) error {
` + block(t, recipes, heading, "go") + "return err\n}\n\n" + functions + "\n"
}

// Three processes have an account each, the fourth has none until one of them ends.
func TestRecipeOfWorkerNumbers(t *testing.T) {
	needTime(t)
	t.Parallel()
	servers := redistest.Start(t, 3)
	program := buildDocumented(t, program(t, "Slots as worker numbers", `func pay(ctx context.Context, account string) error {
	fmt.Println("paying with", account)
	_, _ = fmt.Scanln() // until it is done
	return ctx.Err()
}`), servers)
	begin := func() (account func() string, end func()) {
		cmd := exec.Command(program)
		in, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
		return func() (name string) {
			if _, err := fmt.Fscanf(out, "paying with %s\n", &name); err != nil {
				t.Fatal(err)
			}
			return name
		}, func() { _ = in.Close() }
	}
	ends := make(map[string]func())
	for range 3 {
		account, end := begin()
		ends[account()] = end
	}
	if len(ends) != 3 {
		t.Errorf("three processes have the accounts %v", ends)
	}
	fourth, end := begin()
	locker := open(t, servers)
	eventually(t, "the fourth waits", func() bool {
		seen, err := inspect.Key(t.Context(), locker, "provider")
		return err == nil && len(seen.Masters[0].Queue) == 1
	})
	ends["acct_b"]()
	if got := fourth(); got != "acct_b" {
		t.Errorf("the fourth has %s, want acct_b", got)
	}
	end()
}

func TestRecipeOfAJob(t *testing.T) {
	needTime(t)
	t.Parallel()
	servers := redistest.Start(t, 3)
	program := buildDocumented(t, program(t, "A job on one machine", `func sendInvoices(ctx context.Context, lock *redlock.Lock) error {
	fmt.Println("sending invoices, with fencing token", lock.Fence())
	return ctx.Err()
}`), servers)
	fence, unlock := lock(t, open(t, servers), "job:invoices")
	skips := func(when string) {
		t.Helper()
		if text, code := printed(t, exec.Command(program)); code != 0 || text != "" {
			t.Errorf("%s: exit code %d, %s", when, code, text)
		}
	}
	skips("while another machine runs it")
	unlock()
	var next uint64
	text, code := printed(t, exec.Command(program))
	if _, err := fmt.Sscanf(text, "sending invoices, with fencing token %d\n", &next); err != nil || code != 0 || next <= fence {
		t.Errorf("exit code %d, fencing token after %d: %s", code, fence, text)
	}
	skips("after another machine has run it")
}

func TestRecipeGoServerShutsDown(t *testing.T) {
	needTime(t)
	t.Parallel()
	servers := redistest.Start(t, 3)
	text := strings.Replace(example(t, "server/main.go"), "2 * time.Second", "2 * time.Minute", 1)
	url, cmd, log, exited := serveDocumented(t, buildDocumented(t, text, servers))
	paid := post(t, url+"/orders/42/pay")
	requireStatus(t, paid, http.StatusOK)
	if !strings.HasPrefix(paid.body, "paid order 42, with fencing token ") {
		t.Errorf("%s", paid.body)
	}
	locker := open(t, servers)
	_, unlock := lock(t, locker, "order:43")
	line := postAll(t, url+"/orders/43/pay")
	eventually(t, "the request waits", func() bool {
		seen, err := inspect.Key(t.Context(), locker, "order:43")
		return err == nil && len(seen.Masters[0].Queue) == 1
	})
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	requireStatus(t, line()[0], http.StatusServiceUnavailable)
	within(t, exited, "the end of the program")
	if code := cmd.ProcessState.ExitCode(); code != 0 {
		t.Errorf("exit code %d: %s", code, log)
	}
	unlock()
	redistest.RequireNoKeys(t, servers)
}

func TestRecipeOfResponses(t *testing.T) {
	t.Parallel()
	c, b, release := runRecipe(t, "Responses of your own")
	wait := b.hold(t, c.url+"/orders/42/pay")
	for path, want := range map[string]struct {
		status int
		body   string
	}{
		"/orders/42/pay": {http.StatusTooManyRequests, `{"error": "held"}`},
		"/orders/x/pay":  {http.StatusBadRequest, `{"error": "bad_key"}`},
		"/orders":        {http.StatusBadRequest, `{"error": "missing_key"}`},
	} {
		a := post(t, c.url+path)
		requireStatus(t, a, want.status)
		if a.body != want.body || a.header.Get("Content-Type") != "application/json" {
			t.Errorf("%s: %s, %s", path, a.header.Get("Content-Type"), a.body)
		}
	}
	release()
	requireStatus(t, wait()[0], http.StatusOK)
}

func TestRecipeWithoutMasters(t *testing.T) {
	t.Parallel()
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = fmt.Fprint(w, r.Header.Get("Fencing-Token") != "")
	}))
	t.Cleanup(upstream.Close)
	servers := redistest.Start(t, 3)
	c := runDocumented(t, recipe(t, "If the masters are away"), servers, upstream.Listener.Addr().String())
	if a := post(t, c.url+"/carts/1"); a.status != http.StatusOK || a.body != "true" {
		t.Errorf("with masters: %d %s", a.status, a.body)
	}
	servers[0].Kill()
	servers[1].Kill()
	eventually(t, "requests pass without a token", func() bool {
		a := post(t, c.url+"/carts/2")
		requireStatus(t, a, http.StatusOK)
		return a.body == "false"
	})
	requireLogLine(t, c, "http.log.access", `"outcome":"no_quorum"`)
}

func TestRecipeGoServer(t *testing.T) {
	needTime(t)
	t.Parallel()
	servers := redistest.Start(t, 3)
	url, _, _, _ := serveDocumented(t, buildDocumented(t, example(t, "server/main.go"), servers))
	fence, unlock := lock(t, open(t, servers), "order:42")
	refused := post(t, url+"/orders/42/pay")
	requireStatus(t, refused, http.StatusLocked)
	if !strings.Contains(refused.body, "problems.md#held") {
		t.Errorf("%s", refused.body)
	}
	requireStatus(t, post(t, url+"/orders/x/pay"), http.StatusBadRequest)
	unlock()
	paid := post(t, url+"/orders/42/pay")
	requireStatus(t, paid, http.StatusOK)
	var next uint64
	if _, err := fmt.Sscanf(paid.body, "paid order 42, with fencing token %d\n", &next); err != nil || next <= fence {
		t.Errorf("fencing token after %d: %s", fence, paid.body)
	}
}

// TestEachRecipeIsRun requires a test of this file for each section of docs/recipes.md that has a configuration or a program.
func TestEachRecipeIsRun(t *testing.T) {
	document, err := os.ReadFile(filepath.Join("../..", recipes))
	if err != nil {
		t.Fatal(err)
	}
	tests := ""
	files, err := filepath.Glob("*recipes*_test.go")
	if err != nil {
		t.Fatal(err)
	}
	elsewhere := []string{"Fencing in SQL", "Laravel"} // in packages and files of their own
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		tests += string(text)
	}
	_, sections, _ := strings.Cut(string(document), "\n## ") // before the first are the masters, which recipe puts into each
	for section := range strings.SplitSeq(sections, "\n## ") {
		heading, text, _ := strings.Cut(section, "\n")
		for _, language := range []string{"caddyfile", "go", "js", "python", "ruby", "php"} {
			if strings.Contains(text, "\n```"+language+"\n") && !strings.Contains(tests, fmt.Sprintf("%q", heading)) && !slices.Contains(elsewhere, heading) {
				t.Errorf("no test runs %q", heading)
			}
		}
	}
}
