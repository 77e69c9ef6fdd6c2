package e2e

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// format is a part of a request in which the value of a key may be.
type format struct {
	template string
	readings []string // what upstreams may read from there
	honest   []string // requests that are not refused, and from which each upstream reads 42 or nothing
	variant  func(*variants) string
}

const (
	asForm = "Content-Type: application/x-www-form-urlencoded"
	asJSON = "Content-Type: application/json"
)

var formats = map[string]format{
	"query": {"{query.id}", []string{"query", "query_int", "both"},
		[]string{rawRequest("GET", "/x?id=42", ""), rawRequest("GET", "/x?utm_source=a%20b&id=42&ids=1&order_id=7&id_type=x&q=%5Bid%5D", ""),
			rawRequest("POST", "/x?id=42", "name=x&order%5Bid%5D=7", asForm), rawRequest("POST", "/x?id=42", `{"name":"x"}`, asJSON)},
		func(v *variants) string {
			if v.oneIn(4) {
				return rawRequest("POST", "/x?"+v.form("id"), v.form("id"), v.pick(asForm, asForm, "X: y"))
			}
			return rawRequest("GET", "/x?"+v.form("id"), "")
		}},
	"nested query": {"{query.order.id}", []string{"query_nested"},
		[]string{rawRequest("GET", "/x?order[id]=42", ""), rawRequest("GET", "/x?order%5Bid%5D=42&order%5Bname%5D=7", "")},
		func(v *variants) string { return rawRequest("GET", "/x?"+v.form("order.id", "order[id]"), "") }},
	"form": {"{body.id}", []string{"form", "form_int", "json", "both"},
		[]string{rawRequest("POST", "/x", "id=42&name=J%C3%BCrgen+%26+S%C3%B6hne&order%5Bid%5D=7&tags%5B%5D=a&tags%5B%5D=b&url=https%3A%2F%2Fx.example%2F%3Fid%3D9", asForm),
			rawRequest("POST", "/x?id=42", "id=42", asForm+"; charset=UTF-8")},
		func(v *variants) string {
			target := "/x"
			if v.oneIn(4) {
				target += "?" + v.form("id")
			}
			if v.oneIn(8) { // the field may be in the query alone
				return rawRequest("POST", target, "", v.pick(asForm, asJSON, "Content-Type: application/vnd.x+json", "Content-Type: text/plain", "X: y"))
			}
			return rawRequest("POST", target, v.form("id"), asForm)
		}},
	"nested form": {"{body.order.id}", []string{"form_nested"},
		[]string{rawRequest("POST", "/x", "order%5Bid%5D=42&order%5Bitems%5D%5B0%5D%5Bid%5D=7&utf8=%E2%9C%93", asForm), rawRequest("POST", "/x", "order[id]=42", asForm)},
		func(v *variants) string { return rawRequest("POST", "/x", v.form("order.id", "order[id]"), asForm) }},
	"json": {"{body.id}", []string{"form", "json", "both"},
		[]string{rawRequest("POST", "/x", `{"id":42,"name":"Jürgen","url":"https://x.example/?a=1&id_type=9","items":[{"id":7}],"price":12.50}`, asJSON),
			rawRequest("POST", "/x", "{\n  \"id\": \"42\"\n}", asJSON+"; charset=utf-8"), rawRequest("POST", "/x", `{"id":42.0}`, "Content-Type: application/vnd.api+json")},
		func(v *variants) string { return rawRequest("POST", "/x", v.json(), v.pick(asJSON, asJSON, asForm)) }},
	"cookie": {"{cookie.cart_id}", []string{"cookie"},
		[]string{rawRequest("GET", "/x", "", "Cookie: theme=dark; cart_id=42; _ga=GA1.2.3,4; mail=a%40b.example")},
		func(v *variants) string { return rawRequest("GET", "/x", "", v.cookies("cart_id")...) }},
	"header": {"{header.X-Customer}", []string{"header"},
		[]string{rawRequest("GET", "/x", "", "X-Customer: 42", "X-Customer-Name: x", "Connection: keep-alive")},
		func(v *variants) string { return rawRequest("GET", "/x", "", v.headers("X-Customer")...) }},
	"path": {"{path.1}", []string{"path"},
		[]string{rawRequest("GET", "/orders/42/pay?x=%2F", ""), rawRequest("POST", "/orders/42/pay", "")},
		func(v *variants) string { return rawRequest("GET", v.path(), "") }},
}

// variants generates spellings of names and values at random.
type variants struct{ *rand.Rand }

func (v *variants) pick(texts ...string) string { return texts[v.IntN(len(texts))] }
func (v *variants) oneIn(n int) bool            { return v.IntN(n) == 0 }

// name returns a spelling of a name.
func (v *variants) name(name string) string {
	if !v.oneIn(3) {
		return name
	}
	odd := []string{"", "", "", "%20", "+", "%00", "[", "]", "[]", ".", "_", "%5B", "%5D", "%09", "%0a", "=", "%E2%80%8B"}
	if v.oneIn(4) {
		i := v.IntN(len(name))
		name = name[:i] + v.pick(fmt.Sprintf("%%%02x", name[i]), strings.ToUpper(name[i:i+1]), "%00"+name[i:i+1], "+"+name[i:i+1], name[i:i+1]) + name[i+1:]
	}
	name = v.pick(odd...) + name + v.pick(append(odd, "[0]", "[1]", "[x]", "%00x", ".x", "[][]", "]x", "[x", "%5B%5D")...)
	return v.pick(name, name, name, strings.NewReplacer("[", "%5B", "]", "%5D").Replace(name), strings.NewReplacer(".", v.pick("_", "[", "]", "%20", "][")).Replace(name))
}

// value returns a spelling of 42, or 1.
func (v *variants) value() string {
	if v.oneIn(4) {
		return "1"
	}
	if v.oneIn(3) {
		return "42"
	}
	odd := []string{"", "", "", "", "", "", "", "", "", "", "", "", "", "", "", "", "", "", "%20", "+", "%00", "%0a", "%09", "%0b", "0", "00", "%2B", "-", "%22", "%27", "%A0", "%C2%A0", "%E2%80%8B", "%E2%80%83", "%EF%BB%BF", "%1c", "%7f", "%C2%85", "'"}
	core := v.pick("42", "42", "42", "%34%32", "4%32", "%2534%2532", "%EF%BC%94%EF%BC%92", "%D9%A4%D9%A2", "4_2", "42.0", "4.2e1", "4%002", "4+2", "%C2%B2", "0x2a", "42%ff", "aB", "Ab")
	return v.pick(odd...) + core + v.pick(append(odd, "#a", ";x=1", "%3B", "%23", "%26id=1", ".0", ",1", "%2C1")...)
}

// form returns some pairs, at least one of which has a spelling of one of the names.
func (v *variants) form(names ...string) string {
	var text strings.Builder
	for i := range 1 + v.IntN(3) {
		if i > 0 {
			text.WriteString(v.pick("&", "&", "&", "&", "&", "&", "&", "&", ";", "&&", "&+", "%26"))
			if v.oneIn(2) {
				text.WriteString("x=2")
				continue
			}
		}
		text.WriteString(v.name(v.pick(names...)) + v.pick("=", "=", "=", "=", "=", "=", "=", "=", "=", "=", "==", "]=", "%3D", "") + v.value())
	}
	return text.String()
}

func (v *variants) json() string {
	if v.oneIn(8) {
		return "/*&" + v.form("id") + "&*/" + v.json()
	}
	var text strings.Builder
	for i := range 1 + v.IntN(3) {
		if i > 0 {
			text.WriteString(",")
		}
		name := v.pick(`"id"`, `"id"`, `"id"`, `"id"`, `"id"`, `"x"`, `"x"`, `"x"`, `"x"`, `"ID"`, `"\u0069d"`, `"id "`, `"id\u0000"`, `" id"`, `"x"`, `'id'`, `id`, `"\u0131d"`, `"order.id"`)
		value := v.pick("42", "42.0", "42.00000000000000000001", "4.2e1", "420e-1", `"42"`, `" 42"`, `"42\n"`, `"\u0034\u0032"`, `"４２"`, "1", "null", "true", "[42]", "9007199254740993", "9007199254740992",
			`"9007199254740993"`, "-0", "0", "042", "+42", "0x2a", "NaN", "1e400", `"`+"&"+v.form("id")+"&"+`"`, `"`+"\x01"+`42"`, `"042"`)
		text.WriteString(name + v.pick(":", " : ") + value)
	}
	return v.pick("", "", "", "", "", "", "", "", "", "\ufeff", " ", "\n", "x=1&") + "{" + text.String() + "}" + v.pick("", "", "", "", "", "", "", "", "", " ", "x", `{"id":42}`, "&id=42", "\x00")
}

func (v *variants) cookies(name string) (headers []string) {
	plain := strings.NewReplacer("%5B", "[", "%5D", "]")
	for range 1 + v.IntN(2) {
		text := "x=1"
		for i := range 1 + v.IntN(2) {
			if i > 0 && v.oneIn(2) {
				text += "; y=2"
				continue
			}
			value := v.pick("42", "42", "42", `"42"`, " 42", "42 ", "%34%32", "%2242%22", `"%34%32"`, `"\064\062"`, "+42", "42+", "%2042", "j:42", `j:"42"`, "4\t2", "'42'", `"4"2"`, "1", "42%", "%zz42", "042", `"42`, "s:42.x", v.value())
			cookie := plain.Replace(v.name(v.pick(name, name, name, name, strings.ReplaceAll(name, "_", v.pick(".", " ", "[", "%5F"))))) + v.pick("=", "=", "=", " =", "", "==") + value
			text += v.pick("; ", "; ", "; ", "; ", ";", ", ", ",", " ; ", `; q="; `) + cookie
		}
		headers = append(headers, "Cookie: "+text)
	}
	return headers
}

func (v *variants) headers(name string) (headers []string) {
	for range 1 + v.IntN(2) {
		spelled := v.pick(name, name, strings.ToLower(name), strings.ReplaceAll(name, "-", "_"), strings.ReplaceAll(name, "-", "."), name+"_", strings.ToUpper(name))
		value, _ := url.PathUnescape(v.value())
		if strings.ContainsFunc(value, func(r rune) bool { return r < ' ' || r == 0x7f }) {
			value = "42"
		}
		headers = append(headers, spelled+": "+v.pick(value, " "+value, value+"\t", "42", "1"))
	}
	if v.oneIn(4) {
		headers = append(headers, "Connection: "+v.pick("X-Customer", "close, x-customer", "X_Customer", "keep-alive,X-Customer ,x", "\tX-Customer"))
	}
	return headers
}

func (v *variants) path() string {
	odd := []string{"", "", "", "", "", "", "", "", "", "", "", "", "", "", "", "", "", "", "", "", "", "", "%2F", "%2f", ";x=1", ";", "%3B", "%00", "%20", "%5C", "/.", "/..", "%2E%2E", "//", ".", "#", "%23x", "%25", "+"}
	value := strings.NewReplacer("#a", "%23a").Replace(v.value())
	return "/" + v.pick("orders", "orders", "orders", "orders", "Orders", "%6Frders", "x/../orders", "./orders", "orders"+v.pick(odd...)) + v.pick("/", "/", "/", "/", "/", "/", "/", "/", "//", "%2F", "%5C", "/./") +
		value + v.pick(odd...) + v.pick("/", "/", "/", "/", "/", "/", "/", "/", "/", "//", "%2F", "%2f") + "pay" + v.pick(append(odd, "/")...)
}

// TestNoSplit compares the keys of thousands of spellings of names and values with what real upstreams read from them. Two requests
// from which an upstream reads the same value must have a key in common, unless one of them is refused. $UPSTREAM_VARIANTS sets how
// many requests of each format there are of those at random, of those that are generated one after the other, and of others' suites; "all" has
// all of these.
func TestNoSplit(t *testing.T) {
	t.Parallel()
	names := needUpstreams(t)
	n, most, err := 1000, math.MaxInt, error(nil)
	if text := cmp.Or(os.Getenv("UPSTREAM_VARIANTS"), "200"); text != "all" {
		n, err = strconv.Atoi(text)
		most = n
	}
	if err != nil {
		t.Fatal(err)
	}
	seed := rand.Uint64()
	if text := os.Getenv("UPSTREAM_SEED"); text != "" {
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			upstream := startUpstream(t, name)
			var all sync.WaitGroup
			slots := make(chan bool, 2)
			for at, f := range formats {
				proxy := lockedProxy(t, f.template, upstream, nil).Listener.Addr().String()
				all.Go(func() {
					slots <- true
					defer func() { <-slots }()
					c := comparison{format: f, at: at, proxy: proxy, seen: make(map[string][]sighting)}
					c.run(t, &variants{rand.New(rand.NewPCG(seed, 0))}, n, most)
				})
			}
			all.Wait()
			if t.Failed() {
				t.Logf("UPSTREAM_SEED=%d", seed)
			}
		})
	}
}

// comparison compares the keys of requests with what an upstream reads from them.
type comparison struct {
	format
	at, proxy string
	seen      map[string][]sighting // by the value that was read

	refused, read, splits int
}

// sighting is the first request with these keys from which a value was read.
type sighting struct {
	keys    []string
	request string
}

func (c *comparison) run(t *testing.T, v *variants, n, most int) {
	for _, request := range c.honest {
		a := sendRaw(t, c.proxy, request)
		values := parseReadings(a.body).of(c.readings...)
		if a.status != 200 || a.header.Get("Test-Keys") != "42" || slices.ContainsFunc(values, func(value string) bool { return folded(t, value) != "42" }) {
			t.Errorf("%s, honest: %d with the keys %q, %s\n%s", c.at, a.status, a.header.Get("Test-Keys"), a.body, request)
		}
		c.compare(t, request, a)
	}
	generated, all := served(t, c.at)
	generated = slices.Clone(generated)
	v.Shuffle(len(generated), func(i, j int) { generated[i], generated[j] = generated[j], generated[i] })
	requests := generated[:min(most, len(generated))]
	for range n {
		requests = append(requests, c.variant(v))
	}
	plain := len(requests)
	suites := suiteRequests(t, c.at)
	v.Shuffle(len(suites), func(i, j int) { suites[i], suites[j] = suites[j], suites[i] })
	judge(t, c.at, slices.Values(suites), func(text string, status int, _ string) {
		if status == http.StatusOK && len(requests)-plain < most {
			requests = append(requests, text)
		}
	})
	for _, request := range requests {
		a := sendRaw(t, c.proxy, request)
		if keys := a.header.Get("Test-Keys"); keys == "" && (a.status == 400 || a.status == 415) {
			c.refused++
			continue
		}
		c.compare(t, request, a)
	}
	t.Logf("%s: of %d requests of the generator %d are refused; of the others %d, %d at random and %d of suites %d are refused, %d times a value is read, %d splits", c.at, all, all-len(generated), plain-n, n, len(requests)-plain, c.refused, c.read, c.splits)
}

// compare looks for another request from which the same value was read, and which has no key in common.
func (c *comparison) compare(t *testing.T, request string, a received) {
	keys := strings.Fields(a.header.Get("Test-Keys"))
	for _, kind := range c.readings {
		for _, value := range parseReadings(a.body).of(kind) {
			c.read++
			same := []string{kind + " " + value}
			if number, err := strconv.Atoi(strings.TrimSpace(value)); err == nil {
				same = append(same, fmt.Sprint(kind, " as a number ", number))
			}
			for _, value := range same {
				c.add(t, value, sighting{keys, request})
			}
		}
	}
}

func (c *comparison) add(t *testing.T, value string, s sighting) {
	for _, other := range c.seen[value] {
		if slices.Equal(s.keys, other.keys) {
			return
		}
		if !slices.ContainsFunc(s.keys, func(key string) bool { return slices.Contains(other.keys, key) }) {
			if c.splits++; c.splits <= 5 {
				t.Errorf("%s: two with %q, and the keys %q and %q:\n%q\n%q", c.at, value, other.keys, s.keys, other.request, s.request)
			}
			return
		}
	}
	c.seen[value] = append(c.seen[value], s)
}
