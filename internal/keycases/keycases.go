// Package keycases is a table of requests and the keys that templates make of them. All packages that make keys are tested with
// it, so that they make the same keys.
package keycases

import (
	"net/http"
	"net/http/httptest"
	"strings"
)

// The values of Case.Want for requests without a key.
const (
	Missing   = "\x00missing"   // a part of the key is missing
	Ambiguous = "\x00ambiguous" // a part of the key is given more than once
	Refused   = "\x00refused"   // the request is ambiguous in another way
)

// Case is a request and the key that a template makes of it.
type Case struct {
	Template string
	Request  *http.Request
	Want     string
	Unstable bool // it has characters that Unicode can write in several ways: the plugin for Traefik refuses those
}

func request(target string, headers ...string) *http.Request {
	r := httptest.NewRequest(http.MethodPut, target, nil)
	for i := 0; i < len(headers); i += 2 {
		r.Header.Add(headers[i], headers[i+1])
	}
	return r
}

func host(host string) *http.Request {
	r := request("/")
	r.Host = host
	return r
}

// All returns all cases, with new requests.
func All() []Case {
	return []Case{
		{"{method}", request("/"), "put", false},
		{"{host}", host("Shop.Example.COM"), "shop.example.com", false},
		{"{host}", host("shop.example.com:8080"), "shop.example.com", false},
		{"{host}", host("[::1]:8080"), "%3A%3A1", false},
		{"{host}", host("[::1]"), "%3A%3A1", false},
		{"{host}", host(""), Missing, false},
		{"{path.0}", request("/orders/42/pay"), "orders", false},
		{"{path.1}", request("/orders/42/pay"), "42", false},
		{"{path.2}", request("/orders/42/pay"), "pay", false},
		{"{path.1}", request("/orders/42/"), "42", false},
		{"{path.1}", request("/orders/42?x=/43/"), "42", false},
		{"{path.1}", request("/orders/%34%32"), "42", false},
		{"{path.1}", request("/orders/42%2Fpay"), Refused, false},
		{"{path.1}", request("/orders%2F42/pay"), Refused, false},
		{"{path.1}", request("/orders/42%5Cpay"), Refused, false},
		{"{path.1}", request("/orders/42/pay%2F"), "42", false},
		{"{path.1}", request("/orders/42/..%2F43/pay"), Refused, false},
		{"{path.1}", request("/orders/42/%2e%2e%2F43/pay"), Refused, false},
		{"{path.1}", request("/orders/42/x%2F..%2F..%2F43/pay"), Refused, false},
		{"{path.1}", request("/orders/42/x%2F..;y%2F..%2F43/pay"), Refused, false},
		{"{path.1}", request("/orders/42/..%5C43/pay"), Refused, false},
		{"{path.1}", request("/orders/42;%2F..%2F43/pay"), Refused, false},
		{"{path.1}", request("/orders/42;x%5Cy/pay"), Refused, false},
		{"{path.1}", request("/orders/42/x;%2F..%2F..%2F43/pay"), Refused, false},
		{"{path.1}", request("/orders/42/a%2Fb..c%2F...;d"), "42", false},
		{"{path}", request("/orders/42/x;%2Fy"), Refused, false},
		{"{path.1}", request("/orders/42;x=1/pay"), "42", false},
		{"{path.1}", request("/orders;x/42/pay"), "42", false},
		{"{path.1}", request("/orders/;x/42/pay"), Refused, false},
		{"{path.1}", request("/orders/..;/42/pay"), Refused, false},
		{"{path.1}", request("/orders/42#/pay"), Refused, false},
		{"{path.1}", request("/orders/%EF%BC%94%EF%BC%92"), "42", true},
		{"{path}", request("/orders/42/"), "%2Forders%2F42", false},
		{"{path}", request("/orders//42"), Refused, false},
		{"{path.3}", request("/orders/42/pay"), Missing, false},
		{"{path.1}", request("/orders/"), Missing, false},
		{"{path.0}", request("/"), Missing, false},
		{"{path.1}", request("/orders//42"), Refused, false},
		{"{path.0}", request("/orders//42"), Refused, false},
		{"{path.0}", request("//orders/42"), Refused, false},
		{"{path.1}", request("/./orders/42"), Refused, false},
		{"{path.1}", request("/orders/../42"), Refused, false},
		{"{path.1}", request("/orders/42/.."), Refused, false},
		{"{path.1}", request("/orders/%2e%2E/42"), Refused, false},
		{"{header.X-Order}", request("/", "X-Order", "1234567890123456789"), "1234567890123456789", false},
		{"{header.X-Order}", request("/", "X-Order", "+01234567890123456789.0"), "1234567890123456789", false},
		{"{header.X-Order}", request("/", "X-Order", "1234567890123456789."), "1234567890123456789", false},
		{"{header.X-Order}", request("/", "X-Order", "1234567890123456789E0"), "1234567890123456789", false},
		{"{header.X-Order}", request("/", "X-Order", "123456789012345678.9e+1"), "1234567890123456789", false},
		{"{header.X-Order}", request("/", "X-Order", "123456789_01234567890_00e-3"), "1234567890123456789", false},
		{"{header.X-Order}", request("/", "X-Order", "-1234567890123456789.0"), "-1234567890123456789", false},
		{"{header.X-Order}", request("/", "X-Order", "9007199254740993.50"), "9007199254740993.5", false},
		{"{header.X-Order}", request("/", "X-Order", "90071992547409935e-1"), "9007199254740993.5", false},
		{"{header.X-Order}", request("/", "X-Order", "1e20"), "100000000000000000000", false},
		{"{header.X-Order}", request("/", "X-Order", "0.01e22"), "100000000000000000000", false},
		{"{header.X-Order}", request("/", "X-Order", "e1"), "e1", false},
		{"{header.X-Order}", request("/", "X-Order", "-.e20"), "-.e20", false},
		{"{header.X-Order}", request("/", "X-Order", "7e99999"), "7e99999", false}, // a part of a hash, for example
		{"{header.X-Order}", request("/", "X-Order", "1e999999999999999999999"), "1e999999999999999999999", false},
		{"{header.X-Order}", request("/", "X-Order", "12345678901234567890-1"), "12345678901234567890-1", false},
		{"{header.X-Order}", request("/", "X-Order", "12345678901234567890.1.0"), "12345678901234567890.1.0", false},
		{"{header.X-Order}", request("/", "X-Order", "ΟΔΟΣ"), "%CE%BF%CE%B4%CE%BF%CF%83", false},
		{"{header.X-Order}", request("/", "X-Order", "οδος"), "%CE%BF%CE%B4%CE%BF%CF%83", false},
		{"{header.X-Order}", request("/", "X-Order", "42"), "42", false},
		{"{header.x-order}", request("/", "X-Order", "42"), "42", false},
		{"{header.X-Order}", request("/", "X-Order", ""), Missing, false},
		{"{header.X-Order}", request("/"), Missing, false},
		{"{header.X-Order}", request("/", "X-Order", "42", "X-Order", "43"), Ambiguous, false},
		{"{header.X-Order}", request("/", "X-Order", "1", "X_Order", "42"), Ambiguous, false},
		{"{header.X-Order}", request("/", "X_Order", "42"), Ambiguous, false},
		{"{header.X-Order}", request("/", "X-Order", "42", "X-Order", "42"), Ambiguous, false},
		{"{query.order}", request("/?order=42"), "42", false},
		{"{query.order}", request("/?order=4%32+%20"), "42", false},
		{"{query.a.b}", request("/?a.b=42"), "42", false},
		{"{query.order}", request("/?Order=42"), Ambiguous, false},
		{"{query.order}", request("/?order=42#a"), Refused, false},
		{"{query.order}", request("/?order=1&+order=42"), Ambiguous, false},
		{"{query.order}", request("/?order=1&order%00=42"), Ambiguous, false},
		{"{query.order}", request("/?order=1&[order]=42"), Ambiguous, false},
		{"{query.order}", request("/?order=1&order]=42"), Ambiguous, false},
		{"{query.order_id}", request("/?order_id=1&order.id=42"), Ambiguous, false},
		{"{query.order.id}", request("/?order[id]=42"), "42", false},
		{"{query.order}", request("/?order="), Missing, false},
		{"{query.order}", request("/"), Missing, false},
		{"{query.order}", request("/?order=42&order=43"), Ambiguous, false},
		{"{query.order}", request("/?order=42&%6Frder=43"), Ambiguous, false},
		{"{query.order}", request("/?order=42;x=1"), Refused, false},
		{"{query.order}", request("/?order=42&x=%zz"), Refused, false},
		{"{query.order}", request("/?" + strings.Repeat("x&", 999) + "order=42"), "42", false},
		{"{query.order|query.x}", request("/?x=1" + strings.Repeat("&", 1000) + "order=42"), Refused, false},
		{"{query.order}", request("/?" + strings.Repeat("x", 4096) + "&order=42"), "42", false},
		{"{query.order}", request("/?" + strings.Repeat("x", 4097) + "&order=42"), Refused, false},
		{"{cookie.order}", request("/", "Cookie", "a=1; order=42"), "42", false},
		{"{cookie.order}", request("/", "Cookie", "a=1", "Cookie", "order=42"), "42", false},
		{"{cookie.order}", request("/", "Cookie", "a=order; border=2"), Missing, false},
		{"{cookie.order}", request("/", "Cookie", "order="), Missing, false},
		{"{cookie.order}", request("/", "Cookie", "order=42; order=43"), Ambiguous, false},
		{"{cookie.order}", request("/", "Cookie", "order=42", "Cookie", "order=43"), Ambiguous, false},
		{"{cookie.order}", request("/", "Cookie", "order=\xff; order=43"), Ambiguous, false},
		{"{cookie.order}", request("/", "Cookie", "order; order=43"), Ambiguous, false},
		{"{cookie.order}", request("/", "Cookie", "order=\xff"), Refused, false},
		{"{cookie.order}", request("/", "Cookie", "order=%34%32"), "42", false},
		{"{cookie.order}", request("/", "Cookie", "order=a%40b.example"), "a%40b.example", false},
		{"{cookie.order}", request("/", "Cookie", `order="42"`), "42", false},
		{"{cookie.order}", request("/", "Cookie", `order="%2242%22"`), "42", false},
		{"{cookie.order}", request("/", "Cookie", `order= 42`), "42", false},
		{"{cookie.order}", request("/", "Cookie", `order="\064\062"`), Refused, false},
		{"{cookie.order}", request("/", "Cookie", `order=j:42`), Refused, false},
		{"{cookie.order}", request("/", "Cookie", `order=100%`), Refused, false},
		{"{cookie.order}", request("/", "Cookie", strings.Repeat("x", 4096)+"=1; order=42"), "42", false},
		{"{cookie.order}", request("/", "Cookie", "order=42; "+strings.Repeat("x", 4097)+"=1"), Refused, false},
		{"{cookie.a+b}", request("/", "Cookie", "a+b=42"), "42", false},
		{"{cookie.a+b}", request("/", "Cookie", "a+b=42; a_b=1"), Ambiguous, false}, // one name to those who read + as a space
		{"{cookie.a%20b}", request("/", "Cookie", "a%20b=42"), "42", false},
		{"{cookie.a%b}", request("/", "Cookie", "a%b=42"), "42", false},
		{"{cookie.cart_id}", request("/", "Cookie", "cart.id=42; cart_id=1"), Ambiguous, false},
		{"{cookie.cart_id}", request("/", "Cookie", "cart.id=42"), Ambiguous, false},
		{"{cookie.cart_id}", request("/", "Cookie", "cart_id[a]=42; cart_id=1"), Ambiguous, false},
		{"{cookie.cart_id}", request("/", "Cookie", "x=1,cart_id=42; cart_id=1"), Ambiguous, false},
		{"{cookie.cart_id}", request("/", "Cookie", "cart=1; cart_id=42; _ga=1,2"), "42", false},
		{"order:{path.1}", request("/orders/42/pay"), "order:42", false},
		{"order:{path.1}", request("/orders/042/pay"), "order:42", false},
		{"order:{path.1:int}", request("/orders/42/pay"), "order:42", false},
		{"order:{path.1:int}", request("/orders/042/pay"), Refused, false},
		{"order:{path.1:int}", request("/orders/9007199254740992/pay"), Refused, false},
		{"order:{path.1:int64}", request("/orders/9223372036854775807/pay"), "order:9223372036854775807", false},
		{"order:{path.1:id}", request("/orders/A_b-1/pay"), "order:a_b-1", false},
		{"order:{path.1:id}", request("/orders/a.b/pay"), Refused, false},
		{"order:{path.1:int}", request("/orders"), Missing, false},
		{"{header.X:uuid}", request("/", "X", "00112233-4455-6677-8899-AABBCCDDEEFF"), "00112233-4455-6677-8899-aabbccddeeff", false},
		{"{header.X:uuid}", request("/", "X", "00112233-4455-6677-8899-AABBCCDDEEFG"), Refused, false},
		{"{header.X}:{query.y}", request("/?y=z", "X", "x:y"), "x%3Ay:z", false},
		{"{header.X}:{query.y}", request("/?y=y:z", "X", "x"), "x:y%3Az", false},
		{"{header.X}-{query.y}", request("/?y=z_.~", "X", "x-y"), "x%2Dy-z_.~", false},
		{"{header.A|header.B}", request("/", "B", "b"), "b", false},
		{"{header.A|header.B}", request("/", "A", "", "B", "b"), "b", false},
		{"{header.A|header.B}", request("/", "A", "1", "A", "2", "B", "b"), Ambiguous, false},
		{"{header.A|header.B|query.c}", request("/?c=C"), "c", false},
		{`\{{method}\}`, request("/"), "{put}", false},
		{"all", request("/"), "all", false},
		{"{header.X}", request("/", "X", " A/b c%{} "), "a%2Fb%20c%25%7B%7D", false},
		{"{header.X}", request("/", "X", "4.2e1"), "42", false},
		{"{header.X}", request("/", "X", "4_2"), "42", false},
		{"{header.X}", request("/", "X", "4__2"), "42", false},
		{"{header.X}", request("/", "X", "_+04_2_._0_e_0"), "42", false},
		{"{header.X}", request("/", "X", "_"), "_", false},
		{"{header.X}", request("/", "X", "_-_"), "_-_", false},
		{"{header.X}", request("/", "X", "-0.0"), "0", false},
		{"{header.X}", request("/", "X", "+007"), "7", false},
		{"{header.X}", request("/", "X", "1e400"), "1e400", false},
		{"{header.X}", request("/", "X", "a\x01b"), Refused, false},
		{"{header.X}", request("/", "X", "\x01"), Refused, false},
		{"{header.X}", request("/", "X", "a\xff"), Refused, false},
		{"{header.X}", request("/", "X", "Äpfel"), "%C3%A4pfel", false},
		{"{header.X}", request("/", "X", "٤٢"), "42", false},
		{"{header.X}", request("/", "X", strings.Repeat(" ", 4092)+"٤٢"), "42", false},
		{"{header.X}", request("/", "X", " "+strings.Repeat("٤", 2048)), Refused, false},
		{"{header.X}", request("/", "X", strings.Repeat(" ", 5000)+"A"), "a", false},
		{"{path.1}", request("/orders/" + strings.Repeat("%C3%A4", 2049)), Refused, false},
		{"{header.X}", request("/", "X", "日本語"), "%E6%97%A5%E6%9C%AC%E8%AA%9E", false},
		{"{header.X}", request("/", "X", "A\u0308pfel"), "%C3%A4pfel", true},
		{"{header.X}", request("/", "X", "J\u030c"), "%C7%B0", true},
		{"{header.X}", request("/", "X", "\u01f0"), "%C7%B0", false},
		{"{header.X}", request("/", "X", "\u03aa\u0301"), "%CE%90", true},
		{"{header.X}", request("/", "X", "\u0390"), "%CE%90", false},
		{"{header.X}", request("/", "X", "４２"), "42", true},
		{"{header.X}", request("/", "X", "ﬁ"), "fi", true},
		{"{query.ä}", request("/?%C3%84=1&%C3%A4=2"), Ambiguous, false},
		{"{query.a}", request("/?%EF%BD%81=1&a=2"), Ambiguous, true},
		{"{query.a.0}", request("/?a[0]=1"), "1", false},
		{"{query.a.0}", request("/?a[]=1"), Ambiguous, false},
		{"{query.a.0}", request("/?a=1"), Ambiguous, false},
		{"{query.a}", request("/?a.0=1"), Ambiguous, false},
		{"{query.a}", request("/?.a[0]=1&a=2"), Ambiguous, false},
		{"{query.a}", request("/?a[b]=1"), Ambiguous, false},
		{"{query.a}", request("/?a.b=1"), Missing, false},
		{"{query.a}", request("/?x]a=1"), Missing, false},
		{"{query.a}", request("/?x[y]a=1&a=2"), "2", false},
		{"{query.a}", request("/?a=x&b=%C3%A4"), "x", false},
		{"{path}", request("/A/b;x/%63"), "%2Fa%2Fb%2Fc", false},
	}
}
