package caddyredlock_test

import (
	"bufio"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"

	"github.com/caddy-redlock/caddy-redlock/internal/tests/redistest"
)

// What a client sends under the names of headers that rules set reaches no upstream of a server that has a rule, wherever the rule is.
func TestForgedHeaders(t *testing.T) {
	backend := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		for _, h := range []http.Header{r.Header, r.Trailer} {
			for name := range h {
				if strings.Trim(h.Get(name), "9") == "" && h.Get(name) != "" {
					w.Header().Add("Forged", name)
				}
			}
		}
		w.Header().Set("Kept", r.Trailer.Get("X-Sum"))
		w.Header().Set("Fence", r.Header.Get("X-Fence")+r.Header.Get("Fencing-Token"))
	}))
	defer backend.Close()
	const rules = "redlock /orders/* order:{path.1} {\nkey_header Redlock-Key\n}\nredlock /carts/* cart:{path.1} {\nfence_header X-Fence\n}\n"
	proxy := "reverse_proxy " + backend.Listener.Addr().String() + "\n"
	for name, config := range map[string]string{ // SITE is the only one that gets requests
		"on top":                  "SITE {\n" + rules + proxy + "}",
		"behind a handler":        "SITE {\nencode gzip\n" + rules + proxy + "}",
		"behind a proxy":          "SITE {\nreverse_proxy /login " + backend.Listener.Addr().String() + "\nroute {\n" + rules + proxy + "}\n}",
		"in a handle":             "SITE {\nhandle /login {\n" + proxy + "}\nhandle {\n" + rules + proxy + "}\n}",
		"named":                   "&(shop) {\n" + rules + proxy + "}\nSITE {\ninvoke shop\n}",
		"named, behind a proxy":   "&(shop) {\n" + rules + proxy + "}\nSITE {\nroute {\nreverse_proxy /login " + backend.Listener.Addr().String() + "\ninvoke shop\n}\n}",
		"named, behind a handler": "&(shop) {\n" + rules + proxy + "}\n&(other) {\ninvoke shop\n}\nSITE {\nencode gzip\ninvoke other\n}",
		"named, of some":          "&(shop) {\n" + rules + proxy + "}\nSITE {\ninvoke /orders/* shop\ninvoke /carts/* shop\n" + proxy + "}",
		"at another site, too":    "http://other.example:PORT {\n" + rules + proxy + "}\nSITE {\n" + rules + proxy + "}",
	} {
		t.Run(name, func(t *testing.T) {
			address := runForged(t, config)
			for _, path := range []string{"/login", "/orders/1", "/carts/1", "/orders", "/"} {
				a := sendForged(t, address, path)
				if a.StatusCode != http.StatusOK || a.Header["Forged"] != nil || a.Header.Get("Kept") != "1" {
					t.Errorf("%s: status %d; forged %v has come through; trailer %q", path, a.StatusCode, a.Header["Forged"], a.Header.Get("Kept"))
				}
				if locked := strings.HasSuffix(path, "/1"); locked != (a.Header.Get("Fence") != "") {
					t.Errorf("%s: fence %q", path, a.Header.Get("Fence"))
				}
			}
		})
	}
	for name, config := range map[string]string{ // rules are at another port alone
		"with a host":  "http://shop.example:PORT {\n" + proxy + "}",
		"with a path":  "SITE {\nreverse_proxy /none 127.0.0.1:1\n" + proxy + "}",
		"with a block": "SITE {\nroute {\n" + proxy + "}\n}",
		"invoked":      "&(app) {\n" + proxy + "}\nSITE {\ninvoke app\n}",
	} {
		t.Run("other port "+name, func(t *testing.T) {
			for range 4 { // Caddy loads servers in a random order
				address := runForged(t, "http://127.0.0.1:OTHER {\n"+rules+proxy+"}\n"+config)
				if a := sendForged(t, address, "/login"); a.StatusCode != http.StatusOK || a.Header["Forged"] != nil {
					t.Fatalf("status %d; forged %v has come through", a.StatusCode, a.Header["Forged"])
				}
			}
		})
	}
	t.Run("other port as it is", func(t *testing.T) {
		for range 4 {
			log := filepath.Join(t.TempDir(), "log")
			runForged(t, "http://127.0.0.1:OTHER {\n"+rules+proxy+"}\nSITE {\n"+proxy+"}\nhttp://127.0.0.1:NONE {\nrespond ok\n}", "log {\noutput file "+log+"\n}\n")
			if text := readFile(t, log); strings.Count(text, "clients can send the headers of rules") != 1 {
				t.Fatalf("want one warning, of the server with the proxy:\n%s", text)
			}
		}
	})
	// Caddy sends a request with a host that isn't that of the TLS connection straight to the error routes.
	certificate, key := writeCertificate(t)
	for name, errors := range map[string]string{"": proxy, "invoked ": "invoke app\n"} {
		for _, other := range []string{"", "at another port "} {
			t.Run(other+name+"error route", func(t *testing.T) {
				site := "&(app) {\n" + proxy + "}\nhttps://:PORT {\ntls " + certificate + " " + key + "\n"
				if other == "" {
					site += rules
				} else {
					site = "http://127.0.0.1:OTHER {\n" + rules + proxy + "}\n" + site + "handle /x {\n" + proxy + "}\n"
				}
				address := runForged(t, site+"handle {\ninvoke app\n}\nhandle_errors {\nhandle {\nrewrite * /e?\n"+errors+"}\n}\n}", "auto_https disable_redirects\n")
				conn, err := tls.Dial("tcp", address, &tls.Config{ServerName: "localhost", InsecureSkipVerify: true})
				if err != nil {
					t.Fatal(err)
				}
				if a := sendForgedTo(t, conn, "/login"); a.Header["Forged"] != nil || a.Header.Get("Kept") != "1" {
					t.Errorf("status %d; forged %v has come through; trailer %q", a.StatusCode, a.Header["Forged"], a.Header.Get("Kept"))
				}
				if conn, err = tls.Dial("tcp", address, &tls.Config{ServerName: "shop.example", InsecureSkipVerify: true}); err != nil {
					t.Fatal(err)
				}
				if a := sendForgedTo(t, conn, "/login"); a.StatusCode != http.StatusOK || a.Header["Forged"] != nil || a.Header.Get("Kept") != "1" {
					t.Errorf("with its host: status %d; forged %v has come through; trailer %q", a.StatusCode, a.Header["Forged"], a.Header.Get("Kept"))
				}
			})
		}
	}
	t.Run("without a rule", func(t *testing.T) {
		a := sendForged(t, runForged(t, "SITE {\n"+proxy+"}"), "/")
		if names := a.Header["Forged"]; !slices.Contains(names, "Fencing-Token") || a.Header.Get("Kept") != "1" {
			t.Errorf("%v, %q: the test sends nothing forged", names, a.Header.Get("Kept"))
		}
	})
}

func runForged(t *testing.T, config string, options ...string) (address string) {
	t.Helper()
	port := fmt.Sprint(redistest.FreePort(t))
	config = strings.NewReplacer("SITE", "http://:"+port, "PORT", port, "OTHER", fmt.Sprint(redistest.FreePort(t)), "NONE", fmt.Sprint(redistest.FreePort(t))).Replace(config)
	text, _, err := caddyconfig.GetAdapter("caddyfile").Adapt([]byte("{\nadmin off\ndefault_bind 127.0.0.1\npersist_config off\nstorage_clean_interval off\nservers {\nexpected_underscore_headers Redlock_Slot\nstrict_sni_host on\nprotocols h1 h2\n}\n"+strings.Join(options, "")+"}\n"+config), nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := caddy.Load(text, true); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = caddy.Stop() })
	return "127.0.0.1:" + port
}

// sendForged sends all headers that rules set, with the value 9, and such trailers beside one that is announced.
func sendForged(t *testing.T, address, path string) *http.Response {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	return sendForgedTo(t, conn, path)
}

// writeCertificate writes one that httptest has for its servers.
func writeCertificate(t *testing.T) (certificate, key string) {
	t.Helper()
	server := httptest.NewTLSServer(nil)
	defer server.Close()
	private, err := x509.MarshalPKCS8PrivateKey(server.TLS.Certificates[0].PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	write := func(name, kind string, bytes []byte) string {
		path := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: bytes}), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	return write("certificate.pem", "CERTIFICATE", server.Certificate().Raw), write("key.pem", "PRIVATE KEY", private)
}

func sendForgedTo(t *testing.T, conn net.Conn, path string) *http.Response {
	t.Helper()
	a, err := exchange(t, conn, fmt.Sprintf("POST %s HTTP/1.1\r\nHost: shop.example\r\nFencing-Token: 9\r\nfencing-token: 9\r\nRedlock_Slot: 9\r\nRedlock-Key: 9\r\nX-FENCE: 9\r\n"+
		"X~Fence: 9\r\nTransfer-Encoding: chunked\r\nTrailer: X-Sum, Fencing-Token\r\n\r\n1\r\nx\r\n0\r\nX-Sum: 1\r\nFencing-Token: 99\r\nRedlock-Slot: 99\r\n\r\n", path))
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// exchange sends a request as it is written, and closes the connection.
func exchange(t *testing.T, conn net.Conn, request string) (*http.Response, error) {
	t.Helper()
	defer conn.Close()
	if _, err := io.WriteString(conn, request); err != nil {
		t.Fatal(err)
	}
	method, _, _ := strings.Cut(request, " ")
	a, err := http.ReadResponse(bufio.NewReader(conn), &http.Request{Method: method})
	if err == nil {
		_ = a.Body.Close()
	}
	return a, err
}

// Where each rule has a key_header of its own, an action finds no locked value of another rule.
func TestKeyHeaderOfEachRule(t *testing.T) {
	var seen http.Header
	backend := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { seen = r.Header }))
	defer backend.Close()
	rule := func(name string) string {
		return "redlock /" + name + "s/* " + name + ":{path.1:int} {\nkey_header Locked-" + name + "\n}\n"
	}
	address := runForged(t, "SITE {\n"+rule("order")+rule("ticket")+"reverse_proxy "+backend.Listener.Addr().String()+"\n}\n")
	sendRaw(t, address, "POST /tickets/42 HTTP/1.1\r\nHost: x\r\nConnection: close\r\nX-Original-URL: /orders/42\r\nLocked-Order: {\"path.1\":[\"42\"]}\r\nContent-Length: 0\r\n\r\n")
	if seen.Get("Locked-Ticket") != `{"path.1":["42"]}` || seen.Get("Locked-Order") != "" {
		t.Error(seen)
	}
}
