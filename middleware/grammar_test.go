package middleware_test

import (
	"bytes"
	"compress/gzip"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"unicode/utf16"

	"github.com/caddy-redlock/caddy-redlock/middleware"
)

// Each of these requests was served beside POST /orders/42/pay, id=42 and so on, because some upstream reads 42 from it: with another
// key than 42, or, as on_missing_key may let it pass, with none. It must have the key of 42, or be refused.
func TestGrammar(t *testing.T) {
	t.Parallel()
	form := func(body string) *http.Request { return withBody(formType, body) }
	of := func(body, contentType string) *http.Request { return withBody(contentType, body) }
	query := func(target string) *http.Request { return httptest.NewRequest(http.MethodPost, target, nil) }
	beside := func(target, contentType, body string, headers ...string) *http.Request {
		r := withBody(contentType, body, headers...)
		r.URL.RawQuery = strings.TrimPrefix(target, "/?")
		return r
	}
	cookies := func(text string) *http.Request { return keyRequest("/", "Cookie", text) }
	opaque := func(target string) *http.Request {
		r := httptest.NewRequest(http.MethodPost, "/", nil)
		r.URL.Opaque, r.URL.Path, r.RequestURI = strings.TrimPrefix(target, "x:"), "", target
		return r
	}
	var packed bytes.Buffer
	w := gzip.NewWriter(&packed)
	_, _ = w.Write([]byte("id=42"))
	_ = w.Close()
	for _, c := range []struct {
		name, template string
		request        *http.Request
	}{
		{"opaque target, Flask", "{path.1}", opaque("x:orders/42/pay")},
		{"absolute target", "{path.1}", opaque("http://x/orders/42/pay")},

		{"question mark before a form, Request.formData", "{body.id}", form("?id=42&id=43")},
		{"the same for {form.id}", "{form.id}", form("?id=42&id=43")},
		{"question mark before a form, and no other", "{body.id}", form("?id=42")},
		{"UTF-16 that contains a form, FastAPI", "{body.id}", form(utf16Text("\ufeff{\"id\":42,\"x\":\"") + "&id=43&xx" + utf16Text("\"}"))},
		{"punctuation before a name, Spring", "{body.id}", form("!id=42")},
		{"marker of Spring", "{body.id|form.other}", form("_id=42&other=43")},
		{"byte that is cut to 7 bits", "{body.id}", form("\xe9\xe4=42&id=43")},
		{"the same, escaped", "{body.id}", form("%e9%e4=42&id=43")},
		{"byte order mark, Express", "{body.id|query.id}", beside("/?id=43", formType, "\ufeffid=42")},
		{"escaped byte order mark, Koa", "{body.id}", form("%EF%BB%BFid=42&id=43")},
		{"multipart as a parameter, formidable", "{body.id}", of("--b\r\nContent-Disposition: form-data name=\"id\"\r\n\r\n42\r\n--b--\r\n&id=43", formType+"; x=multipart; boundary=b")},
		{"JSON as a parameter, formidable", "{body.id}", of(`{"id":42,"x":"&id=43&"}`, formType+"; x=json")},
		{"form as a parameter of JSON", "{json.id}", of(`{"id":43,"x":"&id=42&"}`, jsonType+"; x=urlencoded")},

		{"a path that becomes a query, nginx", "{query.id}", query("/orders/42&id=42?id=43")},
		{"the same, Apache", "{query.id}", query("/orders/42%26id%3D42?id=43")},
		{"two question marks, Koa", "{query.id}", query("/??id=42")},
		{"an empty name, h3", "{query.id}", query("/?=id=42")},
		{"a form in gzip, Express 4", "{query.id}", beside("/?id=43", formType, packed.String(), "Content-Encoding", "gzip")},
		{"a form in UTF-16, Jetty", "{query.id}", beside("/?id=43", formType+"; charset=utf-16", utf16Text("id=42"))},

		{"a space in a cookie, aiohttp", "{cookie.id}", cookies("id=43; x=1 id=42")},
		{"a comma after a cookie, Mojolicious", "{cookie.id}", cookies("id=42,")},
		{"a comma in a cookie, WebOb", "{cookie.id}", cookies("id=42, x=1")},
		{"a space behind a name within a cookie, WebOb", "{cookie.id}", cookies("x=1,id =42")},
		{"a bracket in a cookie, WebOb", "{cookie.id}", cookies("id=42]x=1")},
		{"a bracket before a name within a cookie, WebOb", "{cookie.id}", cookies("x=1]id=42")},
		{"brackets before the name of a cookie, WebOb", "{cookie.id}", cookies("[0]id=42")},
		{"a semicolon in a cookie, escaped, Dancer2", "{cookie.id}", cookies("id=42%3Bx=1")},
		{"a plus sign at the end of a cookie, node", "{cookie.id}", cookies("id=42%2B")}, // which reads it in id=42+, too
		{"an ampersand in a cookie, CGI.pm", "{cookie.id}", cookies("id=42&x")},

		{"a cookie in a trailer", "{cookie.id}", withTrailer("Cookie", cookies("id=43"))},
		{"an encoded word in a header, CherryPy", "{header.X-Order}", keyRequest("/", "X-Order", "=?utf-8?q?42?=")},
		{"encoded words in a header", "{header.X-Order}", keyRequest("/", "X-Order", "=?us-ascii?B?NA==?=  =?us-ascii?Q?2?=")},

		{"a UUID without hyphens", "{path.1}", keyRequest("/u/550e8400e29b41d4a716446655440000/pay")},
		{"a UUID in braces", "{path.1}", keyRequest("/u/%7B550e8400-e29b-41d4-a716-446655440000%7D/pay")},
		{"a UUID as an URN", "{path.1}", keyRequest("/u/urn:uuid:550E8400-e29b-41d4-a716-446655440000/pay")},
		{"a UUID with other hyphens", "{path.1}", keyRequest("/u/550e8400e29b-41d4a716446655440000-/pay")},
		{"a UUID whose groups lack zeros, Java", "{path.1}", keyRequest("/u/abc1234-1-4002-8003-2a/pay")},
		{"a UUID whose groups have signs, Java", "{path.1}", keyRequest("/u/+abc1234-+1-4002-8003-+2a/pay")},
		{"a UUID whose groups have more digits than count, Java", "{path.1}", keyRequest("/u/10abc1234-1-4002-8003-2a/pay")},
		{"a UUID with an underscore in place of a zero, Python", "{path.1}", keyRequest("/u/abc1234000140028003_00000000002a/pay")},
		{"a UUID with a sign in place of a zero, Python", "{path.1}", keyRequest("/u/urn:uuid:+abc1234-0001-4002-8003-00000000002a/pay")},
		{"a UUID with a space in place of a zero, Python", "{path.1}", keyRequest("/u/%7B%20abc1234-0001-4002-8003-00000000002a%7D/pay")},

		{"a UUID with a space in front of it in place of a zero, Python", "{path.1}", keyRequest("/u/%20abc1234-0001-4002-8003-00000000002a/pay")},
		{"a plus sign in a path, Slim", "{path.1}", keyRequest("/orders/42+/pay")},
		{"a segment that is escaped twice, Catalyst", "{path.1}", keyRequest("/orders/%2534%32/pay")},

		{"wrap_parameters of Rails", "{body.order.id}", of(`{"id":42}`, jsonType)},
		{"the same before an alternative", "{body.order.id|query.x}", beside("/?x=1", jsonType, `{"id":42}`)},
		{"a name of protojson", "{json.order_id}", of(`{"orderId":42}`, jsonType)},
		{"both names of protojson", "{json.orderId}", of(`{"orderId":43,"order_id":42}`, jsonType)},
		{"both in a form", "{form.orderId}", form("orderId=43&order_id=42")},
		{"a name of Go's json/v2", "{json.orderId}", of(`{"order-id":42}`, jsonType)},
		{"both names of json/v2", "{json.order_id}", of(`{"order_id":43,"Order-ID":42}`, jsonType)},
		{"a path as a name, get of lodash", "{body.order.id}", of(`{"order.id":42,"order":{"id":43}}`, jsonType)},
		{"the same with an index", "{body.orders.0.id}", of(`{"orders[0].id":42,"orders":[{"id":43}]}`, jsonType)},
		{"the prototype of an object, Object.assign", "{body.id|query.x}", beside("/?x=1", jsonType, `{"__proto__":{"id":42}}`)},
		{"the same inside of another one", "{body.order.id|query.x}", beside("/?x=1", jsonType, `{"order":{"__proto__":{"id":42}}}`)},
		{"a form beside a header", "{body.id|header.X}", beside("/?id=42", formType, "x=1", "X", "43")},
	} {
		got := keysFor(t, c.template, c.request)
		if got != "42" && got != "550e8400-e29b-41d4-a716-446655440000" && got != "0abc1234-0001-4002-8003-00000000002a" && got != "ambiguous" && !strings.HasPrefix(got, "refused: ") {
			t.Errorf("%s: %s of %s has the key %q", c.name, c.template, c.request.RequestURI, got)
		}
	}
}

func utf16Text(text string) string {
	var bytes []byte
	for _, unit := range utf16.Encode([]rune(text)) {
		bytes = append(bytes, byte(unit), byte(unit>>8))
	}
	return string(bytes)
}

// What clients write that mean no harm has its key.
func TestGrammarOfHonestClients(t *testing.T) {
	t.Parallel()
	const browser = "text/html; q=\"x\""
	for _, c := range []struct {
		template string
		request  *http.Request
	}{
		{"{body.id}", withBody(formType, "id=42&name=J%C3%BCrgen+S%C3%B6hne&utf8=%E2%9C%93&date%281i%29=2026&_method=patch&__VIEWSTATE=%2Fw%3D%3D")},
		{"{body.id}", withBody(formType, "First+Name=A&ctl00%24Main%24x=1&form%3Ainput=2&entry.123=3&javax.faces.ViewState=x&id=42&g-recaptcha-response=y")},
		{"{body.id}", withBody(formType+";charset=UTF-8", "id=42&note=\"as curl -d sends it\", <raw> {x} #1")},
		{"{body.id}", withBody(formType, "items%5B0%5D%5Bid%5D=7&id=42&items[1][id]=8&submit.x=3")},
		{"{body.order.id}", withBody(formType, "order%5Bname%5D=x&order%5Bid%5D=42")},
		{"{body.id}", withBody(jsonType+"; charset=utf-8", `{"_id":"7","id":42,"url":"https://x.example/?a=1&b=2","order":{"id":7},"größe":"ä"}`)},
		{"{body.id}", withBody(`application/json; charset="utf-8"`, " {\"id\" : 42}\r\n")},
		{"{body.order.id|body.id}", withBody(jsonType, `{"id":42}`)},
		{"{body.order.id|body.id}", withBody(jsonType, `{"id":41,"order":{"id":42}}`)},
		{"{query.id}", keyRequest("/?utm_source=a%20b&id=42&ids=1&order_id=7&id_type=x&q=%5Bid%5D&_=1764000000&flag&token=abc==")},
		{"{query.id}", keyRequest("/?&id=42&")},
		{"{query.id}", keyRequest("/R&D/a=b?id=42")},
		{"{query.order.id}", keyRequest("/?order[id]=42")},
		{"{cookie.cart_id}", keyRequest("/", "Cookie", `theme=dark; cart_id=42; back=%2Fcart%3Fx%3D1%26cart_id%3D7; _ga=GA1.2.3,4; prefs={"a": 1, "b": "x=2"}; x=a b; mail=a%40b.example; u=é; cart_id_old=7`)},
		{"{cookie.cart_id}", keyRequest("/", "Cookie", `a="x y"; cart_id="42"`)},
		{"{path.1}", keyRequest("/orders/42/größe?q=\"x\"")},
		{"{path.1}", keyRequest("/orders/42/pay?=x&?y", "Content-Type", formType, "Cookie", "path=1 2", "Accept", browser)}, // only the path is judged
		{"{header.X-Order}", withBody(formType+"; x=y", "?id=43;", "X-Order", "42")},
	} {
		if got := keysFor(t, c.template, c.request); got != "42" {
			t.Errorf("%s of %s %v: %s", c.template, c.request.RequestURI, c.request.Header, got)
		}
	}
}

// A rule judges the target even if it reads nothing from it, and takes away what gunicorn reads a path from.
func TestTargetIsJudged(t *testing.T) {
	t.Parallel()
	serve := middleware.New(newLocker(t, []string{"memory://"}), "all:{method}", middleware.Rule{})(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if len(r.Header) != 2 { // with the fence
			t.Errorf("the handler gets %v", r.Header)
		}
	}))
	r := keyRequest("/orders/43", "Script-Name", "/orders/43")
	r.Header["SCRIPT_NAME"], r.Header["Path_info"], r.Header["X-Script"] = []string{"/x"}, []string{"/x"}, []string{"/x"}
	w := httptest.NewRecorder()
	if serve.ServeHTTP(w, r); w.Code != http.StatusOK {
		t.Errorf("status %d", w.Code)
	}
	r.RequestURI, r.URL.Opaque = "x:orders/42", "orders/42"
	w = httptest.NewRecorder()
	if serve.ServeHTTP(w, r); w.Code != http.StatusBadRequest || !strings.Contains(w.Body.String(), `target of the request doesn't begin with \"/\"`) {
		t.Errorf("an opaque target: %d %s", w.Code, w.Body)
	}
}
