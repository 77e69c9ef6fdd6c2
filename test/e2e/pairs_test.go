package e2e

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
)

// attacks has requests from which some upstream reads 42, whereas a naive reader finds another key, or none.
var attacks = map[string][]string{
	"query": {
		rawRequest("GET", "/x?id=42#a", ""), rawRequest("GET", "/x?id=1&+id=42", ""), rawRequest("GET", "/x?+id=42", ""), rawRequest("GET", "/x?id=1&id%00=42", ""),
		rawRequest("GET", "/x?id=1&[id]=42", ""), rawRequest("GET", "/x?id=1&id]=42", ""), rawRequest("GET", "/x?[]id=42", ""), rawRequest("GET", "/x?id=042", ""),
		rawRequest("GET", "/x?id=42+", ""), rawRequest("GET", "/x?id=42%00", ""), rawRequest("GET", "/x?id=%EF%BC%94%EF%BC%92", ""), rawRequest("GET", "/x?id=4_2", ""),
		rawRequest("GET", "/x?id=1;id=42", ""), rawRequest("POST", "/x?id=1", "id=42", asForm), rawRequest("POST", "/x?id=1", "id=42"), rawRequest("POST", "/x", "id=42", asForm),
	},
	"nested query": {
		rawRequest("GET", "/x?.order[id][0]=42", ""), rawRequest("GET", "/x?order.id.0=42", ""),
		rawRequest("GET", "/x?order.id=1&order[id]=42", ""), rawRequest("GET", "/x?order%5Bid%5D=42", ""), rawRequest("GET", "/x?order[id]x=42", ""), rawRequest("GET", "/x?order[+id]=42", ""),
		rawRequest("GET", "/x?order_id=1&order[id]=42", ""), rawRequest("GET", "/x?order[id][]=42", ""),
	},
	"form": {
		rawRequest("POST", "/x", ".id[0]=42", asForm), rawRequest("POST", "/x", "id.0=42", asForm), rawRequest("POST", "/x?id=1&+id[0]=42", "id=1", asForm),
		rawRequest("POST", "/x", "id=1&id]=42", asForm), rawRequest("POST", "/x", "id=1&]id=42", asForm), rawRequest("POST", "/x", "x=1&[]id=42", asForm), rawRequest("POST", "/x", "id=42%00", asForm),
		rawRequest("POST", "/x", "id=42+", asForm), rawRequest("POST", "/x", "id=1&+id=42", asForm), rawRequest("POST", "/x", `/*&id=1&*/{"id":42}`, asForm), rawRequest("POST", "/x", "id[]=42", asForm),
		rawRequest("POST", "/x?id=42", "id=1", asForm), rawRequest("POST", "/x?id=42", "x=1", asForm), rawRequest("POST", "/x", `{"id":1,"x":"&id=42&"}`, asJSON), rawRequest("POST", "/x", `{"x":"&id=42&"}`, asJSON),
		rawRequest("POST", "/x", `{"id":1,"x":"&id=42&"}`, asJSON, "Connection: Content-Type"), rawRequest("POST", "/x", `{"id":1,"x":"&id=42&"}`, asJSON, "Content_Type: application/x-www-form-urlencoded"),
	},
	"nested form": {
		rawRequest("POST", "/x", ".order[id][0]=42", asForm), rawRequest("POST", "/x", "order.id.0=42", asForm),
		rawRequest("POST", "/x", "order.id=1&order[id]=42", asForm), rawRequest("POST", "/x", "order%5bid%5d=42", asForm), rawRequest("POST", "/x", "order[id]x=42", asForm),
		rawRequest("POST", "/x", "order[ id]=42", asForm), rawRequest("POST", "/x", "[order][id]=42", asForm), rawRequest("POST", "/x", "order_id=1&order[id]=42", asForm),
	},
	"json": {
		rawRequest("POST", "/x", `{"id":42.00000000000000000001}`, asJSON), rawRequest("POST", "/x", `{"id":42.0}`, asJSON), rawRequest("POST", "/x", `{"id":4.2e1}`, asJSON), rawRequest("POST", "/x", `{"id":"42"}`, asJSON),
		rawRequest("POST", "/x", `{"id":1,"id":42}`, asJSON), rawRequest("POST", "/x", `{"id":1,"\u0069d":42}`, asJSON), rawRequest("POST", "/x", `{"id":" 42"}`, asJSON), rawRequest("POST", "/x", `/*&id=1&*/{"id":42}`, asForm),
		rawRequest("POST", "/x", `{"id":42}`, "Content-Type: text/plain"),
	},
	"cookie": {
		rawRequest("GET", "/x", "", "Cookie: cart_id=%34%32"), rawRequest("GET", "/x", "", "Cookie: cart.id=42; cart_id=1"), rawRequest("GET", "/x", "", "Cookie: cart_id= 42"), rawRequest("GET", "/x", "", `Cookie: cart_id="42"`),
		rawRequest("GET", "/x", "", `Cookie: cart_id="\064\062"`), rawRequest("GET", "/x", "", "Cookie: cart.id=42"), rawRequest("GET", "/x", "", "Cookie: cart_id=j:42"), rawRequest("GET", "/x", "", "Cookie: cart_id=42", "Connection: Cookie"),
		rawRequest("GET", "/x", "", "Cookie: cart_id=1", "Cookie: cart_id=42"), rawRequest("GET", "/x", "", "Cookie: x=1, cart_id=42"),
	},
	"header": {
		rawRequest("GET", "/x", "", "X-Customer: 1", "X_Customer: 42"), rawRequest("GET", "/x", "", "X_Customer: 42"), rawRequest("GET", "/x", "", "X_Customer: 42", "X-Customer: 1", "Connection: X-Customer"),
		rawRequest("GET", "/x", "", "X-Customer: 1", "X-Customer: 42"), rawRequest("GET", "/x", "", "X-Customer: 42 "), rawRequest("GET", "/x", "", "X-Customer: 42", "Connection: x-customer"),
	},
	"path": {
		rawRequest("GET", "/orders/42%2Fpay", ""), rawRequest("GET", "/orders%2F42/pay", ""), rawRequest("GET", "/orders/42;x=1/pay", ""), rawRequest("GET", "/orders/042/pay", ""), rawRequest("GET", "/orders/%EF%BC%94%EF%BC%92/pay", ""),
		rawRequest("GET", "/orders/42/pay/", ""), rawRequest("GET", "/Orders/42/pay", ""), rawRequest("GET", "/orders/%34%32/pay", ""), rawRequest("GET", "/orders//42/pay", ""), rawRequest("GET", "/x/../orders/42/pay", ""),
		rawRequest("GET", "/orders/42/pay%2F", ""), rawRequest("GET", "/orders/42/pay#x", ""), rawRequest("GET", "/orders/42%00/pay", ""),
	},
}

// gate is between a proxy and an upstream, and can keep one response back without reading it.
type gate struct {
	addr    string
	armed   atomic.Bool
	arrived chan bool
	release chan bool
}

func newGate(t *testing.T, upstream string) *gate {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	g := &gate{addr: listener.Addr().String(), arrived: make(chan bool), release: make(chan bool)}
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go g.relay(conn, upstream)
		}
	}()
	return g
}

func (g *gate) relay(conn net.Conn, upstream string) {
	defer conn.Close()
	behind, err := net.Dial("tcp", upstream)
	if err != nil {
		return
	}
	defer behind.Close()
	go func() {
		_, _ = io.Copy(behind, conn)
		_ = behind.(*net.TCPConn).CloseWrite()
	}()
	buffer := make([]byte, 64<<10)
	for {
		n, err := behind.Read(buffer)
		if n > 0 && g.armed.CompareAndSwap(true, false) {
			g.arrived <- true
			<-g.release
		}
		if _, failed := conn.Write(buffer[:n]); err != nil || failed != nil {
			return
		}
	}
}

// hold sends a request, and keeps its response back until release is called.
func (g *gate) hold(t *testing.T, addr, request string) (release func() received) {
	t.Helper()
	g.armed.Store(true)
	got := make(chan received, 1)
	go func() { got <- sendRaw(t, addr, request) }()
	select {
	case <-g.arrived:
	case a := <-got:
		t.Fatalf("not served: %d %s\n%s", a.status, a.body, request)
	}
	return func() received {
		g.release <- true
		return <-got
	}
}

// TestUpstreamPairs sends all attacks while a request on 42 runs: each is refused, or the upstream does not read 42 from it.
func TestUpstreamPairs(t *testing.T) {
	for _, name := range needUpstreams(t) {
		t.Run(name, func(t *testing.T) {
			g := newGate(t, startUpstream(t, name))
			t.Run("nethttp", func(t *testing.T) {
				tryPairs(t, g, func(template string) string {
					return lockedProxy(t, template, g.addr, nil).Listener.Addr().String()
				})
			})
			t.Run("Caddy", func(t *testing.T) {
				tryPairs(t, g, caddyInFront(t, "reverse_proxy "+g.addr))
			})
			if name == "php" {
				t.Run("FPM", func(t *testing.T) {
					g := newGate(t, startFPM(t))
					dir, err := filepath.Abs("../upstreams")
					if err != nil {
						t.Fatal(err)
					}
					tryPairs(t, g, caddyInFront(t, "reverse_proxy "+g.addr+" {\ntransport fastcgi {\nroot "+dir+"\nenv SCRIPT_FILENAME "+dir+"/php.php\n}\n}"))
				})
			}
		})
	}
}

func sample(all []string, n int) []string {
	some := make([]string, n)
	for i := range some {
		some[i] = all[rand.IntN(len(all))]
	}
	return some
}

func tryPairs(t *testing.T, g *gate, front func(template string) string) {
	for at, f := range formats {
		addr := front(f.template)
		kinds := f.readings
		if !strings.HasPrefix(at, "nested") { // "form" and "json" are of id, whereas a nested key is of order.id
			kinds = append([]string{"form", "json"}, kinds...)
		}
		is42 := func(a received) bool {
			for _, value := range parseReadings(a.body).of(kinds...) {
				if n, err := strconv.Atoi(strings.TrimSpace(value)); err == nil && n == 42 {
					return true
				}
			}
			return false
		}
		other := strings.ReplaceAll(f.honest[0], "42", "43")
		for _, honest := range f.honest {
			release := g.hold(t, addr, honest)
			if a := sendRaw(t, addr, honest); a.status != 423 {
				t.Errorf("%s: the same request at once: %d %s\n%s", at, a.status, a.body, honest)
			}
			if a := sendRaw(t, addr, other); a.status != 200 {
				t.Errorf("%s: a request on another order: %d %s\n%s", at, a.status, a.body, other)
			}
			generated, _ := served(t, at)
			for _, attack := range append(slices.Clone(attacks[at]), sample(generated, 20)...) {
				a := sendRaw(t, addr, attack)
				if a.status != 423 && a.status != 400 && a.status != 415 && is42(a) {
					t.Errorf("%s: runs at once with 42: %d %s\n%s", at, a.status, a.body, attack)
				}
			}
			if a := release(); a.status != 200 {
				t.Errorf("%s: an honest request: %d %s\n%s", at, a.status, a.body, honest)
			}
		}
	}
}

// caddyInFront runs Caddy with a rule for each format. front returns the address for a template.
func caddyInFront(t *testing.T, proxy string) (front func(template string) string) {
	t.Helper()
	config := caddyfile("", "")
	addrs := make(map[string]string)
	for _, f := range formats {
		addr := freeAddr(t)
		_, port, _ := net.SplitHostPort(addr)
		addrs[f.template] = addr
		config += fmt.Sprintf("http://:%s {\nredlock %q {\non_missing_key pass\n}\n%s\n}\n", port, f.template, proxy)
	}
	runCaddy(t, config)
	return func(template string) string {
		eventually(t, "Caddy listens", func() bool { return listens(addrs[template]) })
		return addrs[template]
	}
}

// startFPM runs PHP's FastCGI server, with further lines for its pool, until the end of the test.
func startFPM(t *testing.T, pool ...string) string {
	t.Helper()
	found, err := filepath.Glob("/usr/sbin/php-fpm*")
	if err != nil || len(found) == 0 {
		t.Fatal("no php-fpm; run make upstreams")
	}
	addr := freeAddr(t)
	config := filepath.Join(t.TempDir(), "fpm.conf")
	if err := os.WriteFile(config, []byte("[global]\nerror_log = /dev/stderr\ndaemonize = no\n[www]\nlisten = "+addr+"\npm = static\npm.max_children = 2\n"+strings.Join(pool, "\n")+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(found[0], "-F", "-R", "-y", config)
	cmd.WaitDelay = bound
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(os.Interrupt)
		_ = cmd.Wait()
	})
	eventually(t, "php-fpm listens", func() bool { return listens(addr) })
	return addr
}
