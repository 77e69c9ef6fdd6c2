package middleware_test

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/caddy-redlock/caddy-redlock/middleware"
)

// The values of keyCase.want for requests without a key.
const (
	keyMissing   = "\x00missing"   // a part of the key is missing
	keyAmbiguous = "\x00ambiguous" // a part of the key is given more than once
	keyRefused   = "\x00refused"   // the request is ambiguous in another way
)

type keyCase struct {
	template string
	request  *http.Request
	want     string
}

func TestKeyCases(t *testing.T) {
	t.Parallel()
	for i, c := range keyCases() {
		template, err := middleware.ParseTemplate(c.template, middleware.Placeholder)
		if err != nil {
			t.Fatal(err)
		}
		got, err := template.Key(c.request)
		switch {
		case errors.Is(err, middleware.ErrMissingKey):
			got = keyMissing
		case errors.Is(err, middleware.ErrAmbiguousKey):
			got = keyAmbiguous
		case err != nil:
			got = keyRefused
		}
		if got != c.want {
			t.Errorf("case %d: %q of %s %s with %v: %q, want %q (error %v)", i, c.template, c.request.Host, c.request.RequestURI, c.request.Header, got, c.want, err)
		}
		if err != nil && strings.Contains(err.Error(), "43") {
			t.Errorf("case %d: the error shows a value: %v", i, err)
		}
	}
}

func keyRequest(target string, headers ...string) *http.Request {
	r := httptest.NewRequest(http.MethodPut, target, nil)
	for i := 0; i < len(headers); i += 2 {
		r.Header.Add(headers[i], headers[i+1])
	}
	return r
}

func withWildcard(target, name, value string) *http.Request {
	r := keyRequest(target)
	r.SetPathValue(name, value)
	return r
}

func keyHost(host string) *http.Request {
	r := keyRequest("/")
	r.Host = host
	return r
}

func forwarded(lines ...string) *http.Request {
	r := keyHost("shop.example.com")
	r.Header["Forwarded"] = lines
	return r
}

func withTrailer(name string, r *http.Request) *http.Request {
	r.Trailer = http.Header{name: nil}
	return r
}

// keyCases returns requests and the keys that templates make of them.
func keyCases() []keyCase {
	return []keyCase{
		{"{method}", keyRequest("/"), "put"},
		{"{host}", keyHost("Shop.Example.COM"), "shop.example.com"},
		{"{host}", keyHost("shop.example.com:8080"), "shop.example.com"},
		{"{host}", keyHost("[::1]:8080"), "%3A%3A1"},
		{"{host}", keyHost("[::1]"), "%3A%3A1"},
		{"{host}", keyHost(""), keyMissing},
		{"{host}", forwarded("for=1.2.3.4;host=shop.example.com, for=x"), "shop.example.com"},
		{"{host}", forwarded(`for="[::1]:80"; Host="Shop.Example.com:443" ;proto=https`), "shop.example.com"},
		{"{host}", forwarded("for=1.2.3.4;proto=https"), "shop.example.com"},
		{"{host}", forwarded("host=other.example.com"), keyAmbiguous}, // which Rack prefers
		{"{host}", forwarded("for=x;host=shop.example.com", `for=y, HOST = "other.example.com"`), keyAmbiguous},
		{"{host}", forwarded(`host="shop\.example.com"`), keyAmbiguous},
		{"{path.0}", keyRequest("/orders/42/pay"), "orders"},
		{"{path.1}", keyRequest("/orders/42/pay"), "42"},
		{"{path.2}", keyRequest("/orders/42/pay"), "pay"},
		{"{path.1}", keyRequest("/orders/42/"), "42"},
		{"{path.1}", keyRequest("/orders/42?x=/43/"), "42"},
		{"{path.1}", keyRequest("/orders/%34%32"), "42"},
		{"{path.1}", keyRequest("/orders/42%2Fpay"), keyRefused},
		{"{path.1}", keyRequest("/orders%2F42/pay"), keyRefused},
		{"{path.1}", keyRequest("/orders/42%5Cpay"), keyRefused},
		{"{path.1}", keyRequest("/orders/42/pay%2F"), "42"},
		{"{path.1}", keyRequest("/orders/42/..%2F43/pay"), keyRefused},
		{"{path.1}", keyRequest("/orders/42/%2e%2e%2F43/pay"), keyRefused},
		{"{path.1}", keyRequest("/orders/42/x%2F..%2F..%2F43/pay"), keyRefused},
		{"{path.1}", keyRequest("/orders/42/x%2F..;y%2F..%2F43/pay"), keyRefused},
		{"{path.1}", keyRequest("/orders/42/..%5C43/pay"), keyRefused},
		{"{path.1}", keyRequest("/orders/42;%2F..%2F43/pay"), keyRefused},
		{"{path.1}", keyRequest("/orders/42;x%5Cy/pay"), keyRefused},
		{"{path.1}", keyRequest("/orders/42/x;%2F..%2F..%2F43/pay"), keyRefused},
		{"{path.1}", keyRequest("/orders/42/a%2Fb..c%2F...;d"), "42"},
		{"{path}", keyRequest("/orders/42/x;%2Fy"), keyRefused},
		{"{path.1}", keyRequest("/orders/42;x=1/pay"), "42"},
		{"{path.1}", keyRequest("/orders;x/42/pay"), "42"},
		{"{path.1}", keyRequest("/orders/;x/42/pay"), keyRefused},
		{"{path.1}", keyRequest("/orders/..;/42/pay"), keyRefused},
		{"{path.1}", keyRequest("/orders/42#/pay"), keyRefused},
		{"{path.1}", keyRequest("/orders/42&x/pay"), keyRefused},   // 42 in the query that nginx makes of it
		{"{path.1}", keyRequest("/orders/42%26x/pay"), keyRefused}, // and Apache
		{"{path.1}", keyRequest("/orders/42%23x/pay"), keyRefused},
		{"{path.1}", keyRequest("/orders/42%3fx/pay"), keyRefused},
		{"{path.1}", keyRequest("/orders/42;x&id=43/pay"), keyRefused},
		{"{path.1}", keyRequest("/orders/42/x&id=43"), keyRefused}, // a second id, which PHP takes
		{"{path.1}", keyRequest("/orders/42/x%26id%3d43"), keyRefused},
		{"{path.1}", keyRequest("/x%26id=43/42"), keyRefused},
		{"{path.1}", keyRequest("/orders/42/R&D/a=b"), "42"},
		{"{path.1}", keyRequest("/orders/42/what%3F%23/a=b&c?x&id=43"), "42"},
		{"{path}", keyRequest("/orders/a&b"), keyRefused},
		{"{path}", keyRequest("/orders/a%3fb"), keyRefused},
		{"{path.id}", withWildcard("/orders/42%26x/pay", "id", "42&x"), keyRefused},
		{"{path.id}", withWildcard("/orders/42/x&id=43", "id", "42"), keyRefused},
		{"{path.id}", withWildcard("/orders/42/R&D", "id", "42"), "42"},
		{"{path.1}", keyRequest("/orders/%EF%BC%94%EF%BC%92"), "42"},
		{"{path}", keyRequest("/orders/42/"), "%2Forders%2F42"},
		{"{path}", keyRequest("/orders//42"), keyRefused},
		{"{path.3}", keyRequest("/orders/42/pay"), keyMissing},
		{"{path.1}", keyRequest("/orders/"), keyMissing},
		{"{path.0}", keyRequest("/"), keyMissing},
		{"{path.1}", keyRequest("/orders//42"), keyRefused},
		{"{path.0}", keyRequest("/orders//42"), keyRefused},
		{"{path.0}", keyRequest("//orders/42"), keyRefused},
		{"{path.1}", keyRequest("/./orders/42"), keyRefused},
		{"{path.1}", keyRequest("/orders/../42"), keyRefused},
		{"{path.1}", keyRequest("/orders/42/.."), keyRefused},
		{"{path.1}", keyRequest("/orders/%2e%2E/42"), keyRefused},
		{"{header.X-Order}", keyRequest("/", "X-Order", "1234567890123456789"), "1234567890123456789"},
		{"{header.X-Order}", keyRequest("/", "X-Order", "+01234567890123456789.0"), "1234567890123456789"},
		{"{header.X-Order}", keyRequest("/", "X-Order", "1234567890123456789."), "1234567890123456789"},
		{"{header.X-Order}", keyRequest("/", "X-Order", "1234567890123456789E0"), "1234567890123456789"},
		{"{header.X-Order}", keyRequest("/", "X-Order", "123456789012345678.9e+1"), "1234567890123456789"},
		{"{header.X-Order}", keyRequest("/", "X-Order", "123456789_01234567890_00e-3"), "1234567890123456789"},
		{"{header.X-Order}", keyRequest("/", "X-Order", "-1234567890123456789.0"), "-1234567890123456789"},
		{"{header.X-Order}", keyRequest("/", "X-Order", "9007199254740993.50"), "9007199254740993.5"},
		{"{header.X-Order}", keyRequest("/", "X-Order", "90071992547409935e-1"), "9007199254740993.5"},
		{"{header.X-Order}", keyRequest("/", "X-Order", "1e20"), "100000000000000000000"},
		{"{header.X-Order}", keyRequest("/", "X-Order", "0.01e22"), "100000000000000000000"},
		{"{header.X-Order}", keyRequest("/", "X-Order", "e1"), "e1"},
		{"{header.X-Order}", keyRequest("/", "X-Order", "-.e20"), "-.e20"},
		{"{header.X-Order}", keyRequest("/", "X-Order", "7e99999"), "7e99999"}, // a part of a hash, for example
		{"{header.X-Order}", keyRequest("/", "X-Order", "1e999999999999999999999"), "1e999999999999999999999"},
		{"{header.X-Order}", keyRequest("/", "X-Order", "12345678901234567890-1"), "12345678901234567890-1"},
		{"{header.X-Order}", keyRequest("/", "X-Order", "12345678901234567890.1.0"), "12345678901234567890.1.0"},
		{"{header.X-Order}", keyRequest("/", "X-Order", "ΟΔΟΣ"), "%CE%BF%CE%B4%CE%BF%CF%83"},
		{"{header.X-Order}", keyRequest("/", "X-Order", "οδος"), "%CE%BF%CE%B4%CE%BF%CF%83"},
		{"{header.X-Order}", keyRequest("/", "X-Order", "42"), "42"},
		{"{header.x-order}", keyRequest("/", "X-Order", "42"), "42"},
		{"{header.X-Order}", keyRequest("/", "X-Order", ""), keyMissing},
		{"{header.X-Order}", keyRequest("/"), keyMissing},
		{"{header.X-Order}", keyRequest("/", "X-Order", "42", "X-Order", "43"), keyAmbiguous},
		{"{header.X-Order}", keyRequest("/", "X-Order", "1", "X_Order", "42"), keyAmbiguous},
		{"{header.X-Order}", keyRequest("/", "X_Order", "42"), keyAmbiguous},
		{"{header.X-Order}", keyRequest("/", "X-Order", "42", "X-Order", "42"), keyAmbiguous},
		{"{query.order}", keyRequest("/?order=42"), "42"},
		{"{query.order}", keyRequest("/?order=4%32+%20"), "42"},
		{"{query.a.b}", keyRequest("/?a.b=42"), "42"},
		{"{query.order}", keyRequest("/?Order=42"), keyAmbiguous},
		{"{query.order}", keyRequest("/?order=42#a"), keyRefused},
		{"{query.order}", keyRequest("/?order=1&+order=42"), keyRefused},
		{"{query.order}", keyRequest("/?order=1&order%00=42"), keyRefused},
		{"{query.order}", keyRequest("/?order=1&[order]=42"), keyRefused},
		{"{query.order}", keyRequest("/?order=1&order]=42"), keyAmbiguous},
		{"{query.order}", keyRequest("/?order.0=42"), keyAmbiguous}, // a list, as order[0] is
		{"{query.order_id}", keyRequest("/?order_id=1&order.id=42"), keyAmbiguous},
		{"{query.order.id}", keyRequest("/?order[id]=42"), "42"},
		{"{query.order}", keyRequest("/?order="), keyMissing},
		{"{query.order}", keyRequest("/"), keyMissing},
		{"{query.order}", keyRequest("/?order=42&order=43"), keyAmbiguous},
		{"{query.order}", keyRequest("/?order=42&%6Frder=43"), keyAmbiguous},
		{"{query.order}", keyRequest("/?order=42;x=1"), keyRefused},
		{"{query.order}", keyRequest("/?order=42&x=%zz"), keyRefused},
		{"{query.order}", keyRequest("/?" + strings.Repeat("x&", 999) + "order=42"), "42"},
		{"{query.order|query.x}", keyRequest("/?x=1" + strings.Repeat("&", 1000) + "order=42"), keyRefused},
		{"{query.order}", keyRequest("/?" + strings.Repeat("x", 10_000) + "&order=42"), "42"},
		{"{cookie.order}", keyRequest("/", "Cookie", "a=1; order=42"), "42"},
		{"{cookie.order}", keyRequest("/", "Cookie", "a=1", "Cookie", "order=42"), "42"},
		{"{cookie.order}", keyRequest("/", "Cookie", "a=order; border=2"), keyMissing},
		{"{cookie.order}", keyRequest("/", "Cookie", "order="), keyMissing},
		{"{cookie.order}", keyRequest("/", "Cookie", "order=42; order=43"), keyAmbiguous},
		{"{cookie.order}", keyRequest("/", "Cookie", "order=42", "Cookie", "order=43"), keyAmbiguous},
		{"{cookie.order}", keyRequest("/", "Cookie", "order=\xff; order=43"), keyRefused},
		{"{cookie.order}", keyRequest("/", "Cookie", "order; order=43"), keyAmbiguous},
		{"{cookie.order}", keyRequest("/", "Cookie", "order=\xff"), keyRefused},
		{"{cookie.order}", keyRequest("/", "Cookie", "order=%34%32"), "42"},
		{"{cookie.order}", keyRequest("/", "Cookie", "order=a%40b.example"), "a%40b.example"},
		{"{cookie.order}", keyRequest("/", "Cookie", `order="42"`), "42"},
		{"{cookie.order}", keyRequest("/", "Cookie", `order="%2242%22"`), "42"},
		{"{cookie.order}", keyRequest("/", "Cookie", `order= 42`), keyRefused},
		{"{cookie.order}", keyRequest("/", "Cookie", `order="\064\062"`), keyRefused},
		{"{cookie.order}", keyRequest("/", "Cookie", `order=j:42`), keyRefused},
		{"{cookie.order}", keyRequest("/", "Cookie", `order=100%`), keyRefused},
		{"{cookie.order}", keyRequest("/", "Cookie", "order=42; "+strings.Repeat("x", 64<<10-10)), "42"},
		{"{cookie.order}", keyRequest("/", "Cookie", "order=42; "+strings.Repeat("x", 64<<10-9)), keyRefused},
		{"{cookie.order}", keyRequest("/", "Cookie", "order=42"+strings.Repeat(";", 999)), "42"},
		{"{cookie.order}", keyRequest("/", "Cookie", "order=42"+strings.Repeat(";", 1_000)), keyRefused},
		{"{query.order}", keyRequest("/?order=42&" + strings.Repeat("x", 64<<10-11)), "42"},
		{"{query.order}", keyRequest("/?order=42&" + strings.Repeat("x", 64<<10-10)), keyRefused},
		{"{cookie.a+b}", keyRequest("/", "Cookie", "a+b=42"), "42"},
		{"{cookie.a+b}", keyRequest("/", "Cookie", "a+b=42; a_b=1"), keyAmbiguous}, // one name to those who read + as a space
		{"{cookie.a%20b}", keyRequest("/", "Cookie", "a%20b=42"), "42"},
		{"{cookie.a%b}", keyRequest("/", "Cookie", "a%b=42"), "42"},
		{"{cookie.cart_id}", keyRequest("/", "Cookie", "cart.id=42; cart_id=1"), keyAmbiguous},
		{"{cookie.cart_id}", keyRequest("/", "Cookie", "cart.id=42"), keyAmbiguous},
		{"{cookie.cart_id}", keyRequest("/", "Cookie", "cart_id[a]=42; cart_id=1"), keyAmbiguous},
		{"{cookie.cart_id}", keyRequest("/", "Cookie", "x=1,cart_id=42; cart_id=1"), keyAmbiguous},
		{"{cookie.cart_id}", keyRequest("/", "Cookie", "cart=1; cart_id=42; _ga=1,2"), "42"},
		{"order:{path.1}", keyRequest("/orders/42/pay"), "order:42"},
		{"order:{path.1}", keyRequest("/orders/042/pay"), "order:42"},
		{"order:{path.1:int}", keyRequest("/orders/42/pay"), "order:42"},
		{"order:{path.1:int}", keyRequest("/orders/042/pay"), keyRefused},
		{"order:{path.1:int}", keyRequest("/orders/9007199254740992/pay"), keyRefused},
		{"order:{path.1:int64}", keyRequest("/orders/9223372036854775807/pay"), "order:9223372036854775807"},
		{"order:{path.1:id}", keyRequest("/orders/A_b-1/pay"), "order:a_b-1"},
		{"order:{path.1:id}", keyRequest("/orders/a.b/pay"), keyRefused},
		{"order:{path.1:int}", keyRequest("/orders"), keyMissing},
		{"{header.X:uuid}", keyRequest("/", "X", "00112233-4455-6677-8899-AABBCCDDEEFF"), "00112233-4455-6677-8899-aabbccddeeff"},
		{"{header.X:uuid}", keyRequest("/", "X", "00112233-4455-6677-8899-AABBCCDDEEFG"), keyRefused},
		{"{header.X}:{query.y}", keyRequest("/?y=z", "X", "x:y"), "x%3Ay:z"},
		{"{header.X}:{query.y}", keyRequest("/?y=y:z", "X", "x"), "x:y%3Az"},
		{"{header.X}-{query.y}", keyRequest("/?y=z_.~", "X", "x-y"), "x%2Dy-z_.~"},
		{"{header.A|header.B}", keyRequest("/", "B", "b"), "b"},
		{"{header.A|header.B}", keyRequest("/", "A", "", "B", "b"), "b"},
		{"{header.A|header.B}", keyRequest("/", "A", "1", "A", "2", "B", "b"), keyAmbiguous},
		{"{header.A|header.B|query.c}", keyRequest("/?c=C"), "c"},
		{`\{{method}\}`, keyRequest("/"), "{put}"},
		{"all", keyRequest("/"), "all"},
		{"{header.X}", keyRequest("/", "X", " A/b c%{} "), "a%2Fb%20c%25%7B%7D"},
		{"{header.X}", keyRequest("/", "X", "Bearer  a\u00a0 b"), "bearer%20a%20b"},
		{"{path.1}", keyRequest("/orders/a+b"), "a%20b"},
		{"{path.1}", keyRequest("/orders/a%20b"), "a%20b"},
		{"{path.1}", keyRequest("/orders/4.2e%201"), "42"},
		{"{path.1}", keyRequest("/orders/4.2e+1"), "42"},
		{"{path.1}", keyRequest("/orders/+"), keyRefused},
		{"{path.1}", keyRequest("/orders/42/+/x"), "42"},
		{"{header.X}", keyRequest("/", "X", "A-2-3-4-5"), "0000000a-0002-0003-0004-000000000005"},
		{"{header.X}", keyRequest("/", "X", "1-2-3-4-g"), "1-2-3-4-g"},
		{"{header.X}", keyRequest("/", "X", "1-2-3--5"), "1-2-3--5"},
		{"{header.X}", keyRequest("/", "X", "00000000-0000-0000-0000-000000000042"), "42"},
		{"{header.X}", keyRequest("/", "X", "+00-0-0-0-42"), "42"},
		{"{header.X}", keyRequest("/", "X", "4.2e1"), "42"},
		{"{header.X}", keyRequest("/", "X", "4_2"), "42"},
		{"{header.X}", keyRequest("/", "X", "4__2"), "42"},
		{"{header.X}", keyRequest("/", "X", "_+04_2_._0_e_0"), "42"},
		{"{header.X}", keyRequest("/", "X", "_"), "_"},
		{"{header.X}", keyRequest("/", "X", "_-_"), "_-_"},
		{"{header.X}", keyRequest("/", "X", "-0.0"), "0"},
		{"{header.X}", keyRequest("/", "X", "+007"), "7"},
		{"{header.X}", keyRequest("/", "X", "1e400"), "1e400"},
		{"{header.X}", keyRequest("/", "X", "a\x01b"), keyRefused},
		{"{header.X}", keyRequest("/", "X", "\x01"), keyRefused},
		{"{header.X}", keyRequest("/", "X", "a\xff"), keyRefused},
		{"{header.X}", keyRequest("/", "X", "Äpfel"), "apfel"},
		{"{header.X}", keyRequest("/", "X", "٤٢"), "42"},
		{"{header.X}", keyRequest("/", "X", strings.Repeat(" ", 4092)+"٤٢"), "42"},
		{"{header.X}", keyRequest("/", "X", " "+strings.Repeat("٤", 2048)), keyRefused},
		{"{header.X}", keyRequest("/", "X", strings.Repeat(" ", 5000)+"A"), "a"},
		{"{path.1}", keyRequest("/orders/" + strings.Repeat("%C3%A4", 2049)), keyRefused},
		{"{header.X}", keyRequest("/", "X", "日本語"), "%E6%97%A5%E6%9C%AC%E8%AA%9E"},
		{"{header.X}", keyRequest("/", "X", "b "), "b"},
		{"{query.x}", keyRequest("/?x=%3Db+"), "%3Db"},
		{"{header.X}", keyRequest("/", "X", "b  b"), "b%20b"},
		{"{header.X}", keyRequest("/", "X", "José"), "jose"},
		{"{header.X}", keyRequest("/", "X", "STRASSE"), "strasse"},
		{"{header.X}", keyRequest("/", "X", "Straße"), "strasse"},
		{"{header.X}", keyRequest("/", "X", "İ"), "i"},
		{"{header.X}", keyRequest("/", "X", "ᾳ"), "%CE%B1%CE%B9"},
		{"{header.X}", keyRequest("/", "X", "한국"), "%ED%95%9C%EA%B5%AD"},
		{"{header.X}", keyRequest("/", "X", "A\u0308pfel"), "apfel"},
		{"{header.X}", keyRequest("/", "X", "J\u030c"), "j"},
		{"{header.X}", keyRequest("/", "X", "\u01f0"), "j"},
		{"{header.X}", keyRequest("/", "X", "\u03aa\u0301"), "%CE%B9"},
		{"{header.X}", keyRequest("/", "X", "\u0390"), "%CE%B9"},
		{"{header.X}", keyRequest("/", "X", "４２"), "42"},
		{"{header.X}", keyRequest("/", "X", "ﬁ"), "fi"},
		{"{query.a}", keyRequest("/?%EF%BD%81=1&a=2"), keyRefused},
		{"{query.a.0}", keyRequest("/?a[0]=1"), "1"},
		{"{query.a.0}", keyRequest("/?a[]=1"), keyAmbiguous},
		{"{query.a.0}", keyRequest("/?a=1"), keyAmbiguous},
		{"{query.a}", keyRequest("/?a.0=1"), keyAmbiguous},
		{"{query.a}", keyRequest("/?.a[0]=1&a=2"), keyAmbiguous},
		{"{query.a}", keyRequest("/?a[b]=1"), keyAmbiguous},
		{"{query.a}", keyRequest("/?a.b=1"), keyMissing},
		{"{query.a}", keyRequest("/?x]a=1"), keyMissing},
		{"{query.a}", keyRequest("/?x[y]a=1&a=2"), "2"},
		{"{query.a}", keyRequest("/?a=x&b=%C3%A4"), "x"},
		{"{path}", keyRequest("/A/b;x/%63"), "%2Fa%2Fb%2Fc"},
	}
}
