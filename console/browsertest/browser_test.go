// Package browsertest looks at the page of package console with Chromium.
package browsertest

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"

	"github.com/caddy-redlock/caddy-redlock/console"
	"github.com/caddy-redlock/caddy-redlock/internal/tests/redistest"
	"github.com/caddy-redlock/caddy-redlock/redlock"
)

const (
	bound    = 30 * time.Second        // for what a healthy browser does at once, however busy the machine is
	interval = 1500 * time.Millisecond // between two updates of the page

	calm = 2 * time.Second // a time-out that keeps a master on a busy machine from being taken for one that has failed
)

// chromium is the one process that all tests use.
var chromium context.Context

func TestMain(m *testing.M) {
	options := append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.NoSandbox, // the tests may run as root
		chromedp.Flag("disable-dev-shm-usage", true),
		chromedp.Flag("host-resolver-rules", "MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"),
	)
	allocator, end := chromedp.NewExecAllocator(context.Background(), options...)
	var close context.CancelFunc
	chromium, close = chromedp.NewContext(allocator)
	if err := chromedp.Do(chromium); err != nil {
		fmt.Fprintln(os.Stderr, "Chromium doesn't start (make console installs it):", err)
		os.Exit(1)
	}
	code := m.Run()
	close()
	end()
	os.Exit(code)
}

// tab is a tab of the browser. It watches what the page asks for, and what the browser complains of.
type tab struct {
	t      *testing.T
	ctx    context.Context
	origin string // no other may be asked

	mu         sync.Mutex
	complaints []string
}

// open opens the URL in a new tab, which is closed with the test.
func open(t *testing.T, url string, before ...chromedp.Action[chromedp.Void]) *tab {
	t.Helper()
	b := &tab{t: t, origin: url[:strings.Index(url[len("http://"):], "/")+len("http://")]}
	var end context.CancelFunc
	b.ctx, end = chromedp.NewContext(chromium, chromedp.WithListener(b.watch))
	t.Cleanup(end)
	if err := chromedp.Do(b.ctx); err != nil {
		t.Fatal(err)
	}
	b.run(send(network.Enable, network.EnableParams{}), send(log.Enable, cdp.Empty{}))
	b.run(append(before, chromedp.Navigate(url))...)
	t.Cleanup(func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		for _, complaint := range b.complaints {
			t.Error(complaint)
		}
	})
	return b
}

func (b *tab) watch(event any) {
	var complaint string
	switch event := event.(type) {
	case *network.EventRequestWillBeSent:
		if url := event.Request.URL; !strings.HasPrefix(url, b.origin+"/") && !strings.HasPrefix(url, "data:image/svg+xml,") && url != "about:blank" {
			complaint = "request for " + url
		}
	case *log.EventEntryAdded: // violations of the policy are among them
		if !strings.HasSuffix(event.Entry.URL, "/favicon.ico") { // our page names its icon; what Caddy answers in its place doesn't
			complaint = fmt.Sprintf("%s: %s %s", event.Entry.Source, event.Entry.Text, event.Entry.URL)
		}
	case *runtime.EventExceptionThrown:
		complaint = "exception: " + event.ExceptionDetails.Text
	case *page.EventJavascriptDialogOpening:
		complaint = "dialog: " + event.Message
	}
	if complaint != "" {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.complaints = append(b.complaints, complaint)
	}
}

// forgive forgets what the browser has complained of: a test has provoked it.
func (b *tab) forgive(text string) {
	b.t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	var others []string
	for _, complaint := range b.complaints {
		if !strings.Contains(complaint, text) {
			others = append(others, complaint)
		}
	}
	b.complaints = others
}

// send returns the action that sends a command to the tab.
func send[P, R any](command cdp.Command[P, R], params P) chromedp.Action[chromedp.Void] {
	return chromedp.Func(func(ctx context.Context, _ *chromedp.Target) error {
		_, err := chromedp.Call(ctx, command, params)
		return err
	})
}

func (b *tab) run(actions ...chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, bound)
	defer cancel()
	if err := chromedp.Do(ctx, actions...); err != nil {
		b.t.Fatal(err)
	}
}

// get returns the result of an action.
func get[T any](b *tab, action chromedp.Action[T]) T {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, bound)
	defer cancel()
	value, err := chromedp.Run(ctx, action)
	if err != nil {
		b.t.Fatal(err)
	}
	return value
}

// eval returns the value of an expression.
func eval[T any](b *tab, expression string) T {
	b.t.Helper()
	return get(b, chromedp.Evaluate[T](expression))
}

// await waits until the expression is true. While a page comes and goes, it may fail.
func (b *tab) await(what, expression string) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, bound)
	defer cancel()
	for ; ; time.Sleep(20 * time.Millisecond) {
		holds, _ := chromedp.Run(ctx, chromedp.Evaluate[bool](expression))
		if holds {
			return
		}
		if ctx.Err() != nil {
			b.t.Fatalf("not within %v: %s; the page shows\n%s", bound, what, eval[string](b, "document.body?.innerText ?? ''"))
		}
	}
}

// click clicks on the element, once it is there: the script of the page may replace it between a look and a click of the mouse.
func (b *tab) click(selector string) {
	b.t.Helper()
	b.await("an element to click on: "+selector, fmt.Sprintf("(e => !!e && (e.click(), true))(document.querySelector(%q))", selector))
}

// submit submits the form of a field with this value.
func (b *tab) submit(field, value string) {
	b.t.Helper()
	b.await("a field to fill in: "+field, fmt.Sprintf("(e => !!e && (e.value = %q, e.form.requestSubmit(), true))(document.getElementById(%q))", value, field))
}

// awaitText waits until the page shows the text.
func (b *tab) awaitText(text string) {
	b.t.Helper()
	b.await(fmt.Sprintf("the text %q", text), fmt.Sprintf("document.body.innerText.includes(%q)", text))
}

// width makes the window so many pixels wide.
func width(pixels int64) chromedp.Action[chromedp.Void] {
	return send(emulation.SetDeviceMetricsOverride, emulation.SetDeviceMetricsOverrideParams{Width: pixels, Height: 900, DeviceScaleFactor: 1, Mobile: pixels < 600})
}

// widths are those of windows: of small, usual and large phones, and of a desktop.
var widths = []int64{360, 390, 500, 1280}

// cut are the elements whose text doesn't fit: it is cut off, or lies on that beside it.
const cut = `[...document.querySelectorAll("main *, header *")].filter(e => {
	const style = getComputedStyle(e)
	if (!e.offsetParent || e.closest("thead") || e.matches("section") || style.clipPath != "none" || style.textOverflow == "ellipsis" || e.closest("svg")) return false
	const box = e.getBoundingClientRect(), page = document.documentElement.clientWidth
	return box.right > page + 1 && !e.closest(".scroll") || style.display != "inline" && e.scrollWidth > e.clientWidth + 1 && !e.matches(".scroll")
}).map(e => e.tagName + "." + e.className + ": " + e.innerText.slice(0, 80)).join("; ")`

func scheme(name string) chromedp.Action[chromedp.Void] {
	return send(emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: name}}})
}

// accessible requires that axe-core, which AXE names as a file if it is to look, finds nothing to complain of.
func (b *tab) accessible(what string) {
	b.t.Helper()
	file := os.Getenv("AXE")
	if file == "" || !eval[bool](b, "document.documentElement.classList.contains('js')") { // without JavaScript the page doesn't stay
		return
	}
	script, err := os.ReadFile(file)
	if err != nil {
		b.t.Fatal(err)
	}
	eval[bool](b, string(script)+`
		window.found = undefined
		axe.run().then(r => window.found = r.violations.map(v => v.id + ": " + v.nodes.map(n => n.html).join(", ")).join("\n"), e => window.found = "" + e)
		true`)
	b.await("axe has looked", "window.found !== undefined")
	if found := eval[string](b, "window.found"); found != "" {
		b.t.Errorf("%s: %s", what, found)
	}
}

// looks requires that the page fits into windows of all widths, and writes pictures of each, light and dark, to the folder SCREENSHOTS if
// that is given.
func (b *tab) looks(name string) {
	b.t.Helper()
	for _, pixels := range widths {
		for _, colours := range []string{"light", "dark"} {
			b.run(width(pixels), scheme(colours))
			if wide := eval[int](b, "document.scrollingElement.scrollWidth - innerWidth"); wide > 0 {
				b.t.Errorf("%s: the page is %d pixels too wide for a window of %d", name, wide, pixels)
			}
			if found := eval[string](b, cut); found != "" {
				b.t.Errorf("%s: too wide for a window of %d pixels: %s", name, pixels, found)
			}
			b.accessible(fmt.Sprint(name, ", ", pixels, " pixels, ", colours))
			if folder := os.Getenv("SCREENSHOTS"); folder != "" {
				picture := get(b, chromedp.FullScreenshot(100))
				if err := os.WriteFile(filepath.Join(folder, fmt.Sprint(name, "-", pixels, "-", colours, ".png")), picture, 0o600); err != nil {
					b.t.Error(err)
				}
			}
		}
	}
}

// world is some masters, a locker, and its console.
type world struct {
	servers []*redistest.Server
	locker  *redlock.Locker
	url     string
}

// newWorld mounts the console somewhere below the root of a server; wrap may be nil.
func newWorld(t *testing.T, masters int, wrap func(http.Handler) http.Handler, opts ...redlock.Option) *world {
	t.Helper()
	w := &world{servers: redistest.Start(t, masters)}
	var err error
	w.locker, err = redlock.Open(redistest.URLs(w.servers), append([]redlock.Option{
		redlock.WithRestartGuard(0), redlock.WithTimeout(calm), redlock.WithInstance("web1/4242"),
	}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.locker.Close() })
	handler := http.StripPrefix("/ops/redlock", console.New(func() []*redlock.Locker { return []*redlock.Locker{w.locker} }))
	if wrap != nil {
		handler = wrap(handler)
	}
	mux := http.NewServeMux()
	mux.Handle("/ops/redlock/", handler)
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	w.url = server.URL + "/ops/redlock/"
	return w
}

// lock takes a lock for the rest of the test.
func (w *world) lock(t *testing.T, key string, opts ...redlock.LockOption) *redlock.Lock {
	t.Helper()
	lock, err := w.locker.Lock(t.Context(), key, opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = lock.Unlock() })
	return lock
}

// wait has n calls wait for a key that is locked, until the end of the test.
func (w *world) wait(t *testing.T, key string, n int) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var calls sync.WaitGroup
	for range n {
		calls.Go(func() {
			if lock, err := w.locker.Lock(ctx, key); err == nil {
				_ = lock.Unlock()
			}
		})
	}
	t.Cleanup(calls.Wait)
	t.Cleanup(cancel)
}

// waitElsewhere has another process wait for a key that is locked, until the end of the test.
func (w *world) waitElsewhere(t *testing.T, instance, key string) {
	t.Helper()
	locker, err := redlock.Open(redistest.URLs(w.servers), redlock.WithRestartGuard(0), redlock.WithTimeout(calm), redlock.WithInstance(instance))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = locker.Close() })
	other := &world{locker: locker}
	other.wait(t, key, 1)
}
