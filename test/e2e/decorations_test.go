package e2e

import (
	"bufio"
	"fmt"
	"iter"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/caddy-redlock/caddy-redlock/internal/tests/redistest"
	"github.com/caddy-redlock/caddy-redlock/middleware"
	"github.com/caddy-redlock/caddy-redlock/redlock"
)

// decorations are what a reader may ignore, cut off or take for another character: every byte but most letters and digits, as it is and
// escaped, and what has a meaning to some reader.
func decorations(escape string) []string {
	all := meaningful(escape)
	for b := range 256 {
		if c := string([]byte{byte(b)}); strings.Trim(c, "bcfghklmopqrtuvwyBCDEFGHIJKLMNOPQRSTUVWXY345678") != "" {
			all = append(all, c, fmt.Sprintf(escape, b))
		}
	}
	return all
}

func meaningful(escape string) (all []string) {
	for _, text := range []string{"\u00a0", "\u0085", "\u200b", "\ufeff", "\u2028", "\u3000", "\u0660", "\uff10", "\u0131", "\u0130", "\u017f", "\u212a", "\u0301", "\uff3b", "\xc0\xaf", "\xc0\x80", "\xfe\xff", "\xff\xfe"} {
		all = append(all, text)
		var escaped strings.Builder
		if escape == `\u%04x` {
			for _, r := range text {
				fmt.Fprintf(&escaped, escape, r)
			}
		} else {
			for _, b := range []byte(text) {
				fmt.Fprintf(&escaped, escape, b)
			}
		}
		all = append(all, escaped.String())
	}
	return append(all, "", "[]", "[0]", "[1]", "[x]", "][", "[[", ".0", ".x", "__", "--", "&&", "==", "&amp;", "%5B%5D", "%5B0%5D", "%00x", "%26", "%3D", "%2526", "%u0030", "%", "%4", "/*", "*/", "//", "/./", "/../", "\r\n", "%0d%0a", "j:", "s:", "!", "$", "0x", "e0", ".0", "L", "n")
}

// valuesOf42 are what some reader takes for 42.
var valuesOf42 = []string{"42", "042", "+42", "%2B42", "42.0", "42.", "4.2e1", "4.2E1", "420e-1", "4_2", "４２", "%EF%BC%94%EF%BC%92", "%D9%A4%D9%A2", "%34%32", "%2534%2532", "0x2a", "0o52", "0b101010", "42n", "42L", "42e0",
	"[42]", `"42"`, `'42'`, `"\064\062"`, `"\u0034\u0032"`, "j:42", `j:"42"`, "s:42.x", "42,1", "1,42", "42;1", "42#", "42%23", "42?x", "٤٢", "4\u00ad2", "4%C2%AD2", "00000000000000000000000000000042", "{42}", "urn:42"}

// spelled returns all pairs of a name and a value with one decoration.
func spelled(name, value, decoration string) []string {
	middle := len(name) / 2
	return []string{
		decoration + name + "=" + value, name[:middle] + decoration + name[middle:] + "=" + value, name + decoration + "=" + value, name[:middle] + decoration + name[middle+1:] + "=" + value,
		name + "=" + decoration + value, name + "=" + value[:1] + decoration + value[1:], name + "=" + value + decoration, name + decoration + value,
		"x=1" + decoration + name + "=" + value, name + "=" + value + decoration + "x=1", name + "=" + value + decoration + name + "=43", name + "=43" + decoration + name + "=" + value,
	}
}

// beside returns a pair as it is, and beside another one.
func beside(pair, name, separator string) []string {
	return []string{pair, name + "=43" + separator + pair, pair + separator + name + "=43", "x=1" + separator + pair}
}

// pairs yields all spellings of names and values, for requests that have them between separators.
func pairs(escape, separator string, names []string, request func(text string) string) iter.Seq[string] {
	return func(yield func(string) bool) {
		for i, name := range names {
			some := meaningful(escape)
			if i == 0 {
				some = decorations(escape)
			}
			for _, value := range valuesOf42 {
				for _, text := range beside(name+"="+value, names[0], separator) {
					if !yield(request(text)) {
						return
					}
				}
			}
			for _, decoration := range some {
				for _, pair := range spelled(name, "42", decoration) {
					for _, text := range beside(pair, names[0], separator) {
						if !yield(request(text)) {
							return
						}
					}
				}
			}
		}
	}
}

// generated yields all requests on 42 whose name or value has one decoration.
func generated(at string) iter.Seq[string] {
	asGET := func(text string) string { return rawRequest("GET", "/x?"+text, "") }
	asPOST := func(text string) string { return rawRequest("POST", "/x", text, asForm) }
	switch at {
	case "query":
		return pairs("%%%02X", "&", []string{"id", "ID", "_id", "i_d", "order_id", "[id]", ".id"}, asGET)
	case "nested query":
		return pairs("%%%02X", "&", []string{"order[id]", "order.id", "order%5Bid%5D", "order_id", "order[id]]", "orderId", "order:id"}, asGET)
	case "form":
		return pairs("%%%02X", "&", []string{"id", "ID", "_id", "i_d", "order_id", "[id]", ".id"}, asPOST)
	case "nested form":
		return pairs("%%%02X", "&", []string{"order[id]", "order.id", "order%5Bid%5D", "order_id", "order[id]]", "orderId", "order:id"}, asPOST)
	case "cookie":
		return pairs("%%%02X", "; ", []string{"cart_id", "cart.id", "Cart_id", "cart%5Fid", "cartId"}, func(text string) string { return rawRequest("GET", "/x", "", "Cookie: "+text) })
	case "json":
		return generatedJSON
	case "header":
		return generatedHeaders
	}
	return generatedPaths
}

func generatedJSON(yield func(string) bool) {
	send := func(text string) bool { return yield(rawRequest("POST", "/x", text, asJSON)) }
	for _, decoration := range decorations(`\u%04x`) {
		for _, text := range []string{
			`"` + decoration + `id":42`, `"i` + decoration + `d":42`, `"id` + decoration + `":42`, `"id":"` + decoration + `42"`, `"id":"4` + decoration + `2"`, `"id":"42` + decoration + `"`,
			`"id":` + decoration + `42`, `"id":4` + decoration + `2`, `"id":42` + decoration, `"id"` + decoration + `42`, decoration + `"id":42`, `"x":1` + decoration + `"id":42`, `"x":"` + decoration + `id=42&"`,
		} {
			for _, members := range []string{text, `"id":43,` + text, text + `,"id":43`} {
				if !send("{" + members + "}") {
					return
				}
			}
		}
		if !send(decoration+`{"id":42}`) || !send(`{"id":42}`+decoration) || !send(`{"id":43}`+decoration+`{"id":42}`) || !send(`[`+decoration+`{"id":42}]`) {
			return
		}
	}
	for _, value := range append(valuesOf42, "42.00000000000000000001", "[42]", "[[42]]", `{"":42}`, `{"0":42}`, "null", "9007199254740993", "NaN") {
		for _, text := range []string{`"id":` + value, `"id":"` + value + `"`, `"ID":` + value, `"id":43,"Id":` + value, `"order":{"id":` + value + `}`} {
			if !send("{" + text + "}") {
				return
			}
		}
	}
}

func generatedHeaders(yield func(string) bool) {
	const name = "X-Customer"
	for _, decoration := range decorations("%%%02X") {
		for _, line := range []string{
			decoration + name + ": 42", "X" + decoration + "Customer: 42", "X-Cus" + decoration + "tomer: 42", name + decoration + ": 42", name + ":" + decoration + "42", name + ": 4" + decoration + "2", name + ": 42" + decoration,
			name + ": 43" + decoration + "42", "X: 1" + decoration + name + ": 42", "Connection: x" + decoration + name,
		} {
			if !yield(rawRequest("GET", "/x", "", line)) || !yield(rawRequest("GET", "/x", "", name+": 43", line)) || !yield(rawRequest("GET", "/x", "", line, name+": 43")) {
				return
			}
		}
	}
	for _, value := range valuesOf42 {
		if !yield(rawRequest("GET", "/x", "", name+": "+value)) {
			return
		}
	}
}

func generatedPaths(yield func(string) bool) {
	for _, decoration := range decorations("%%%02X") {
		for _, path := range []string{
			decoration + "/orders/42/pay", "/" + decoration + "orders/42/pay", "/ord" + decoration + "ers/42/pay", "/orders" + decoration + "/42/pay", "/orders/" + decoration + "42/pay", "/orders/4" + decoration + "2/pay",
			"/orders/42" + decoration + "/pay", "/orders/42/" + decoration + "pay", "/orders/42/pay" + decoration, "/orders" + decoration + "42/pay", "/orders/42" + decoration + "pay", "/orders/43" + decoration + "42/pay",
			"/orders/43/" + decoration + "/42/pay", "/orders/43/" + decoration + "/../42/pay", "/x/" + decoration + "/orders/42/pay", "/orders/42/pay" + decoration + "/43/pay", "http://shop.example" + decoration + "/orders/42/pay",
		} {
			if !yield(rawRequest("GET", path, "")) {
				return
			}
		}
	}
	for _, value := range valuesOf42 {
		if !yield(rawRequest("GET", "/orders/"+value+"/pay", "")) {
			return
		}
	}
}

// served returns those of all generated requests for a format that its rule doesn't refuse, without an upstream, and how many there are in
// all. The others reach no upstream.
var served = func() func(t *testing.T, at string) ([]string, int) {
	var mu sync.Mutex
	type result struct {
		requests []string
		all      int
	}
	found := make(map[string]result)
	return func(t *testing.T, at string) ([]string, int) {
		t.Helper()
		mu.Lock()
		defer mu.Unlock()
		if r, ok := found[at]; ok {
			return r.requests, r.all
		}
		var r result
		r.all = judge(t, at, generated(at), func(text string, status int, _ string) {
			if status == http.StatusOK {
				r.requests = append(r.requests, text)
			}
		})
		found[at] = r
		return r.requests, r.all
	}
}()

// judge passes requests to the rule of a format, without an upstream, and tells how each is answered: with 200 if it isn't refused. Requests
// that net/http doesn't read are left out. It returns how many there are in all.
func judge(t *testing.T, at string, requests iter.Seq[string], tell func(text string, status int, key string)) (all int) {
	t.Helper()
	locker, err := redlock.Open([]string{"memory://"})
	if err != nil {
		t.Fatal(err)
	}
	defer locker.Close()
	key := ""
	handler := middleware.New(locker, formats[at].template, middleware.Rule{OnMissingKey: middleware.Pass})(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		turn, _ := middleware.TurnFromContext(r.Context())
		key = turn.Key
	}))
	for text := range requests {
		all++
		request, err := http.ReadRequest(bufio.NewReader(strings.NewReader(text)))
		if err != nil {
			continue
		}
		key = ""
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, request)
		tell(text, w.Code, key)
	}
	return all
}

// TestGenerator shows how many of the generated requests the grammar leaves to be judged by upstreams, and that it refuses no plain one.
func TestGenerator(t *testing.T) {
	if redistest.Race {
		t.Skip("make test runs it: it starts no goroutine, and with the race detector it takes ten times as long")
	}
	t.Parallel()
	for at := range formats {
		requests, all := served(t, at)
		t.Logf("%s: %d of %d generated requests are not refused", at, len(requests), all)
		if len(requests) == 0 {
			t.Errorf("%s: all are refused", at)
		}
	}
}
