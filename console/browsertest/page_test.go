package browsertest

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"

	"github.com/caddy-redlock/caddy-redlock/console"
	"github.com/caddy-redlock/caddy-redlock/internal/base/version"
	"github.com/caddy-redlock/caddy-redlock/internal/tests/redistest"
	"github.com/caddy-redlock/caddy-redlock/redlock"
)

const label = "order:{path.1:int}"

// The page says in its first line whether locks can be taken, and which master is ill.
func TestMasters(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		masters         int
		well, one, none string
	}{
		{1, "The only master is available. If it fails, no lock can be taken.", "No locks can be taken", ""},
		{3, "All 3 masters are available, and a lock needs 2.", "Locks are granted, but 1 of 3 masters is ill", "No locks can be taken"},
		{5, "All 5 masters are available, and a lock needs 3.", "A lock needs 3: 1 more may fail.", "Locks are granted, but 2 of 5 masters are ill"},
	} {
		t.Run(fmt.Sprint(test.masters), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, test.masters, nil)
			w.lock(t, "order:42", redlock.WithLabel(label))
			b := open(t, w.url)
			b.awaitText(test.well)
			b.looks(fmt.Sprint(test.masters, "-well"))
			w.servers[test.masters/2].Kill()
			b.awaitText(test.one)
			b.await("one master is ill", "document.querySelectorAll('.masters .badge.bad').length == 1")
			b.looks(fmt.Sprint(test.masters, "-one-down"))
			if test.none != "" {
				w.servers[0].Kill()
				b.awaitText(test.none)
				b.looks(fmt.Sprint(test.masters, "-two-down"))
			}
		})
	}
}

// Locks come and go on the page without anybody's help, and what somebody types stays.
func TestLive(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 3, nil)
	b := open(t, w.url)
	b.awaitText("This process holds no key, and waits for none.")
	b.await("live", "live.innerText == 'Live'")
	b.await("the module's version is there", fmt.Sprintf("document.querySelector('.version').innerText == %q", version.String()))
	b.run(chromedp.SendKeys(chromedp.ID("key"), "half a word"))
	lock := w.lock(t, "order:1", redlock.WithLabel(label))
	w.wait(t, "order:1", 2)
	b.awaitText("order:1")
	b.await("two calls wait", "main.dataset.waiting == '2'")
	b.looks("few")
	if got := eval[string](b, "document.activeElement.id + ': ' + key.value"); got != "key: half a word" {
		t.Errorf("an update has changed the focus or the input: %q", got)
	}
	w.lock(t, "order:0")
	b.await("order:1, for which calls wait, is above order:0", "[...document.querySelectorAll('.keys tbody .key')].map(e => e.innerText).join() == 'order:1,order:0'")
	if err := lock.Unlock(); err != nil {
		t.Error(err)
	}
	b.await("order:1 is free", "document.querySelectorAll('.keys tbody tr').length == 1")
}

// When nobody looks, the process is not asked; when it doesn't answer, that can't be overlooked.
func TestSilence(t *testing.T) {
	t.Parallel()
	var asked, silent atomic.Int64
	w := newWorld(t, 1, func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			asked.Add(1)
			if silent.Load() > 0 {
				panic(http.ErrAbortHandler)
			}
			next.ServeHTTP(w, r)
		})
	})
	b := open(t, w.url)
	b.await("live", "live.innerText == 'Live'")
	silent.Store(1)
	b.await("the page says that nobody answers", "silence.innerText.includes('answer') && document.documentElement.classList.contains('stale')")
	b.looks("silent")
	b.forgive("net::ERR_EMPTY_RESPONSE")
	silent.Store(0)
	b.await("live again", "live.innerText == 'Live' && silence.innerText == '' && !document.documentElement.classList.contains('stale')")
	b.forgive("net::ERR_EMPTY_RESPONSE")

	// Another tab in front of it.
	b.run(chromedp.Evaluate[chromedp.Void](`Object.defineProperty(document, 'visibilityState', { value: 'hidden', configurable: true }); document.dispatchEvent(new Event('visibilitychange'))`))
	b.await("paused", "live.innerText == 'Paused'")
	before := asked.Load()
	b.run(chromedp.Sleep(3 * interval))
	if now := asked.Load(); now > before+1 { // one may have been under way
		t.Errorf("a page that nobody sees has asked %d times", now-before)
	}
	b.run(chromedp.Evaluate[chromedp.Void](`delete document.visibilityState; document.dispatchEvent(new Event('visibilitychange'))`))
	b.await("live once more", "live.innerText == 'Live'")
	for deadline := time.Now().Add(bound); asked.Load() < before+3; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("a page that is seen again does not ask again")
		}
	}
}

// A thousand keys: those for which most calls wait, a hundred at a time by name, by prefix, and any one.
func TestManyKeys(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 3, nil)
	for i := range 1000 {
		w.lock(t, fmt.Sprintf("order:%d", 10000+i*37), redlock.WithLabel(label))
	}
	w.wait(t, "order:10037", 3)
	w.wait(t, "order:10111", 7)
	b := open(t, w.url)
	b.awaitText("100 of 1000 keys")
	b.awaitText("7 calls")
	b.looks("many")
	b.await("the key for which most calls wait is first", "document.querySelector('.keys .key').innerText == 'order:10111'")
	b.click("a[href*='sort=key']")
	b.await("the first by name", "document.readyState == 'complete' && document.querySelector('.keys .key').innerText == 'order:10000'")
	rows := "document.querySelectorAll('.keys tbody tr').length"
	for page := 2; page <= 10; page++ {
		b.click("a[rel=next]")
		b.await("the next page", fmt.Sprintf("document.readyState == 'complete' && %s == 100 && document.querySelector('.keys .key').innerText == 'order:%d'", rows, 10000+(page-1)*100*37))
	}
	if eval[bool](b, "!!document.querySelector('a[rel=next]')") {
		t.Error("there is a page behind the last one")
	}
	b.submit("prefix", "order:100")
	b.awaitText("3 of 3 keys that begin with order:100")
	b.submit("key", "order:46963")
	b.awaitText("Held by web1/4242")
}

// A key as each master sees it.
func TestKey(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 3, nil)
	lock := w.lock(t, "order:42", redlock.WithLabel(label))
	w.waitElsewhere(t, "web2/77", "order:42")
	b := open(t, w.url+"?key=order:42")
	b.awaitText("Held by web1/4242")
	b.awaitText(fmt.Sprint(lock.Fence()))
	b.await("a process waits on all masters", "document.querySelectorAll('.queue li').length == 3 && document.querySelector('.queue').innerText.includes('web2/77')")
	b.looks("key")
	w.servers[1].Kill()
	b.awaitText("no reply")
	b.looks("key-one-down")
	w.servers[2].Kill()
	b.awaitText("Too few masters answer")
	b.looks("key-no-quorum")
	b = open(t, w.url)
	b.awaitText("No locks can be taken")
}

// No key is more than text.
func TestHostileKeys(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1, nil)
	keys := []string{
		"<script>document.title='pwned'</script>", `"><img src=x onerror=document.title='pwned'>`, `' autofocus onfocus='document.title="pwned"`,
		"javascript:document.title='pwned'", "{{.Key}}", "</title><script>document.title='pwned'</script>", "a&amp;b", "..", "a/../b?c#d", "  a  b  ", "\u202eabc", "\xff\x00", "#", "%2F",
		"data:text/html,<script>document.title='pwned'</script>",
	}
	for _, key := range keys {
		w.lock(t, key, redlock.WithLabel(key))
	}
	b := open(t, w.url)
	b.awaitText(fmt.Sprintf("%d of %d keys", len(keys), len(keys)))
	b.await("live", "live.innerText == 'Live'")
	b.looks("hostile")
	for i := range keys {
		link := fmt.Sprintf("document.querySelectorAll('.keys tbody .key')[%d]", i)
		b.await("the row of the key", "!!"+link) // the page may still be loading
		shown := eval[string](b, link+".textContent")
		b.run(chromedp.Evaluate[chromedp.Void](link + ".click()"))
		b.awaitText("Held by")
		if got := eval[string](b, "document.querySelector('h2 .key').textContent"); got != shown {
			t.Errorf("the link of %q leads to %q", shown, got)
		}
		b.await("live", "live.innerText == 'Live'") // the script has come
		b.click("button.release")
		if got := eval[string](b, "document.getElementById('confirm-key').textContent"); got != shown {
			t.Errorf("the question about %q names %q", shown, got)
		}
		b.click("button[value=cancel]")
		b.click(".back a")
		b.awaitText("Keys of this process")
	}
	if eval[bool](b, "document.title.includes('pwned') || !!document.querySelector('main script, main img')") {
		t.Error("a key has become more than text")
	}
}

// A lock is released by two clicks, and never by one.
func TestRelease(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 3, nil)
	lock := w.lock(t, "order:42", redlock.WithLabel(label))
	w.lock(t, "order:43", redlock.WithLabel(label))
	b := open(t, w.url)
	b.awaitText("order:42")
	b.await("live", "live.innerText == 'Live'")
	b.click("button.release")
	b.await("the question names key and fencing token", fmt.Sprintf("(q => q.open && q.innerText.includes('order:42') && q.innerText.includes('%d'))(document.getElementById('confirm'))", lock.Fence()))
	if focus := eval[string](b, "document.activeElement.value"); focus != "cancel" {
		t.Errorf("the focus is on %q", focus)
	}
	b.looks("confirm")
	b.click("button[value=cancel]")
	b.await("the question is closed", "!document.getElementById('confirm').open")
	if err := lock.Err(); err != nil {
		t.Fatalf("the lock has ended: %v", err)
	}
	b.click("button.release")
	b.click("button[value=release]")
	b.awaitText("Released: order:42")
	b.looks("released")
	b.await("the key is gone", "document.querySelectorAll('.keys tbody tr').length == 1")
	<-lock.Context().Done()

	// Somebody else was faster.
	b.run(chromedp.Evaluate[chromedp.Void]("document.querySelector('button.release').dataset.release = 'locks?key=order:43&fence=1'"))
	b.run(chromedp.Evaluate[chromedp.Void]("document.querySelector('button.release').click(); document.querySelector('button[value=release]').click()"))
	b.awaitText("Not released: order:43. The key has another lock by now.")
	b.forgive("409 (Conflict)")
}

// Without JavaScript the page can be read, and offers nothing that would not work.
func TestWithoutJavaScript(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1, nil)
	w.lock(t, "order:42", redlock.WithLabel(label))
	b := open(t, w.url, send(emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: true}))
	b.awaitText("order:42")
	b.awaitText("Locks are granted")
	if eval[bool](b, "document.querySelector('.release').checkVisibility()") {
		t.Error("there is a button that does nothing")
	}
	b.looks("without-javascript")
}

// During a reload, the former locker is shown below the new one, whose masters are the first thing to know. These have just
// started.
func TestSeveralLockers(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 3, nil)
	w.lock(t, "order:42", redlock.WithLabel(label))
	newer, err := redlock.Open(redistest.URLs(redistest.Start(t, 3)), redlock.WithTimeout(calm), redlock.WithInstance("web1/4242"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = newer.Close() })
	server := httptest.NewServer(console.New(func() []*redlock.Locker { return []*redlock.Locker{newer, w.locker} }))
	t.Cleanup(server.Close)
	b := open(t, server.URL+"/")
	b.awaitText("No locks can be taken")
	b.await("the guard of three masters", "[...document.querySelectorAll('.until')].filter(e => e.innerText.startsWith('until ')).length == 3")
	b.awaitText("of another configuration that is still in use: 1 held, 0 waiting")
	b.awaitText("order:42")
	b.looks("several")
}
