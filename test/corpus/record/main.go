// Command record lets real clients of many languages send requests, looks whether the grammar refuses one of them, and stores a sample:
// make corpus installs the clients and runs it.
package main

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"log"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httputil"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/caddy-redlock/caddy-redlock/test/corpus"
)

const (
	perFormat = 44 // cases
	mostBytes = 190 << 10
	bound     = 5 * time.Minute // of a client
)

// clients has the programs, with the libraries that they can use.
var clients = []struct {
	command   []string
	libraries []string
}{
	{[]string{"/usr/bin/python3", "clients.py"}, []string{"urllib", "requests", "httpx", "httplib2", "pycurl", "aiohttp"}},
	{[]string{"node", "clients.mjs"}, []string{"fetch", "node-fetch", "undici", "http", "axios", "got", "ky", "superagent"}},
	{[]string{"php", "clients.php"}, []string{"streams", "curl", "guzzle"}},
	{[]string{"ruby", "clients.rb"}, []string{"net-http", "faraday", "httparty", "rest-client", "httpclient", "excon", "typhoeus"}},
	{[]string{"perl", "clients.pl"}, []string{"lwp", "tiny", "mojo"}},
	{[]string{"java", "Clients.java"}, []string{"http-client", "url-connection"}},
	{[]string{"sh", "clients.sh"}, []string{"curl", "wget", "httpie"}},
	{[]string{"lua5.4", "clients.lua"}, []string{"socket"}},
	{[]string{"Rscript", "clients.R"}, []string{"curl"}},
	{[]string{"tclsh", "clients.tcl"}, []string{"http"}},
	{[]string{"escript", "clients.escript"}, []string{"httpc"}},
}

var (
	texts = []string{"plain", "Jürgen & Söhne; \"x\" <y> 'z'", "naïve 100% #1 = ok?", "日本語 テスト", "🛒 cart", "a+b=c&d", "line / path | back", "order[id]=9", "café", "x&id=43", "  two  spaces ", "Ελλάδα Привет", "{\"id\": 43}", "50%2B off", "tab, comma"}
	links = []string{"https://x.example/", "https://x.example/p?id=9&b=c#frag", "https://x.example/a%20b?q=%C3%BC", "mailto:a@b.example", "/relative?x=1;y=2"}
	ascii = []func(n int) string{ // IDs of ASCII
		func(n int) string { return strconv.Itoa(n + 1000) },
		func(int) string {
			return fmt.Sprintf("%08x-%04x-4%03x-a%03x-%012x", rand.Uint32(), rand.IntN(1<<16), rand.IntN(1<<12), rand.IntN(1<<12), rand.Int64N(1<<48))
		},
		func(int) string { return fmt.Sprintf("ord_%010x", rand.Int64N(1<<40)) },
		func(n int) string { return fmt.Sprintf("AB-2026-%05d", n) },
		func(int) string { return strconv.FormatInt(rand.Int64N(1<<62), 10) },
	}
	others = []func(n int) string{
		func(n int) string { return fmt.Sprintf("Müller %d", n) },
		func(n int) string { return fmt.Sprintf("注文-%d", n) },
		func(n int) string { return fmt.Sprintf("a b %d", n) },
		func(n int) string { return fmt.Sprintf("cart 🛒%d", n) },
		func(n int) string { return fmt.Sprintf("kunde%d@b.example", n) },
	}
)

// newID returns an ID that a client may have in a request of a format. Cookies and headers hold tokens.
func newID(format string, n int) string {
	if format == "cookie" || format == "header" || n%2 == 0 {
		return ascii[n/2%len(ascii)](n)
	}
	return others[n/2%len(others)](n)
}

type recorder struct {
	ids map[string]string // by format and number

	mu     sync.Mutex
	client string
	got    []corpus.Request
	page   string
	done   chan bool
}

func (rec *recorder) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/browser" {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		fmt.Fprint(w, rec.page)
		return
	}
	if r.URL.Path == "/done" {
		rec.done <- true
		return
	}
	text, err := httputil.DumpRequest(r, true)
	parts := strings.SplitN(r.URL.Path, "/", 4)
	if id := rec.ids[strings.Join(parts[1:min(3, len(parts))], "/")]; err == nil && id != "" {
		rec.mu.Lock()
		rec.got = append(rec.got, corpus.Request{Client: rec.client, Format: parts[1], ID: id, Text: string(text)})
		rec.mu.Unlock()
	}
	fmt.Fprint(w, "{}")
}

func main() {
	if err := run(); err != nil {
		log.Fatal(err)
	}
}

func run() error {
	rec := &recorder{ids: make(map[string]string), done: make(chan bool, 1)}
	var cases strings.Builder
	for format := range corpus.Templates {
		for n := range perFormat {
			id := newID(format, n)
			rec.ids[fmt.Sprintf("%s/%d", format, n)] = id
			fmt.Fprintf(&cases, "%s\t%d\t%s\t%s\t%s\n", format, n, id, texts[rand.IntN(len(texts))], links[rand.IntN(len(links))])
		}
	}
	dir, err := os.MkdirTemp("", "corpus")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	file := filepath.Join(dir, "cases")
	if err := os.WriteFile(file, []byte(cases.String()), 0o600); err != nil {
		return err
	}
	page, err := os.ReadFile("clients/browser.html")
	if err != nil {
		return err
	}
	text, err := json.Marshal(cases.String())
	if err != nil {
		return err
	}
	rec.page = strings.Replace(string(page), "CASES", string(text), 1)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	server := &http.Server{Handler: rec, ReadHeaderTimeout: bound}
	go func() { _ = server.Serve(listener) }()
	defer server.Close()
	base := "http://" + listener.Addr().String()
	for _, c := range clients {
		for _, library := range c.libraries {
			rec.send(c.command[0], library, slices.Concat(c.command, []string{library, base, file}))
		}
	}
	rec.browse(dir, base)
	return store(rec.got)
}

// send lets a client send all cases.
func (rec *recorder) send(language, library string, args []string) {
	before := rec.start(filepath.Base(language) + " " + library)
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Dir = "clients"
	modules, _ := filepath.Abs("../../bin/corpus/node_modules")
	cmd.Env = append(os.Environ(), "NODE_PATH="+modules, "PYTHONDONTWRITEBYTECODE=1", "LC_ALL=C.UTF-8")
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	timer := time.AfterFunc(bound, func() { _ = cmd.Process.Kill() })
	err := cmd.Run()
	timer.Stop()
	rec.report(before, err, out.String())
}

// browse lets Chromium send the cases, with forms and scripts.
func (rec *recorder) browse(dir, base string) {
	before := rec.start("chromium")
	var out bytes.Buffer
	cmd := exec.Command("chromium", "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--user-data-dir="+filepath.Join(dir, "chromium"), base+"/browser")
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Start()
	if err == nil {
		select {
		case <-rec.done:
		case <-time.After(bound):
			err = fmt.Errorf("not done within %v", bound)
		}
		_ = cmd.Process.Signal(os.Interrupt)
		_ = cmd.Wait()
	}
	rec.report(before, err, out.String())
}

func (rec *recorder) start(client string) (before int) {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	rec.client = client
	return len(rec.got)
}

func (rec *recorder) report(before int, err error, out string) {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	fmt.Printf("%-24s %d requests\n", rec.client, len(rec.got)-before)
	if err != nil {
		fmt.Printf("%v\n%s\n", err, out[max(0, len(out)-1000):])
	}
}

// store checks all requests, and stores as many as fit.
func store(all []corpus.Request) error {
	checker, err := corpus.NewChecker()
	if err != nil {
		return err
	}
	defer checker.Close()
	refused, shown := 0, make(map[string]bool)
	for _, r := range all {
		if err := checker.Check(r); err != nil {
			refused++
			if at := r.Client + r.Format; !shown[at] {
				shown[at] = true
				fmt.Printf("%s, %s: %v\n%q\n", r.Client, r.Format, err, r.Text)
			}
		}
	}
	fmt.Printf("%d requests, %d of them refused or under another key\n", len(all), refused)
	rand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	for n := len(all); ; n = n * 9 / 10 {
		some := slices.Clone(all[:n])
		slices.SortFunc(some, func(a, b corpus.Request) int {
			return cmp.Or(cmp.Compare(a.Client, b.Client), cmp.Compare(a.Format, b.Format))
		})
		var zipped bytes.Buffer
		w, err := gzip.NewWriterLevel(&zipped, gzip.BestCompression)
		if err != nil {
			return err
		}
		encoder := json.NewEncoder(w)
		for _, r := range some {
			if err := encoder.Encode(r); err != nil {
				return err
			}
		}
		if err := w.Close(); err != nil {
			return err
		}
		if zipped.Len() <= mostBytes {
			fmt.Printf("%d are stored, in %d bytes\n", n, zipped.Len())
			return os.WriteFile("testdata/requests.jsonl.gz", zipped.Bytes(), 0o644)
		}
	}
}
