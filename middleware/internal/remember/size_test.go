package remember_test

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"

	"github.com/caddy-redlock/caddy-redlock/middleware/internal/remember"
)

// typical are responses as APIs and sites give them.
func typical() map[string]*remember.Response {
	r := rand.New(rand.NewPCG(17, 18))
	words := strings.Fields("order payment total shipped from warehouse invoice customer thank you for your purchase we will write when it arrives at home")
	id := func(n int) string {
		const letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
		text := make([]byte, n)
		for i := range text {
			text[i] = letters[r.IntN(len(letters))]
		}
		return string(text)
	}
	var payment strings.Builder
	fmt.Fprintf(&payment, `{"id":"pi_%s","object":"payment_intent","amount":129900,"currency":"eur","status":"succeeded","created":1795359144,"customer":"cus_%s","client_secret":"pi_%s","charges":[`, id(24), id(14), id(40))
	for i := range 3 {
		fmt.Fprintf(&payment, `%s{"id":"ch_%s","object":"charge","amount":43300,"currency":"eur","status":"succeeded","paid":true,"balance_transaction":"txn_%s","card":{"brand":"visa","last4":"%04d","exp_month":%d,"exp_year":2029}}`,
			strings.Repeat(",", min(i, 1)), id(24), id(24), r.IntN(10000), 1+r.IntN(12))
	}
	fmt.Fprintf(&payment, `],"metadata":{"order":"%s"},"livemode":true}`, id(120))
	var page strings.Builder
	page.WriteString("<!doctype html><html><head><title>Order</title><link rel=stylesheet href=/site.css></head><body><table>\n")
	for page.Len() < 30<<10 {
		fmt.Fprintf(&page, "<tr class=\"line\"><td><a href=\"/articles/%s\">", id(10))
		for range 4 + r.IntN(8) {
			page.WriteString(words[r.IntN(len(words))] + " ")
		}
		fmt.Fprintf(&page, "</a></td><td class=\"amount\">%d.%02d EUR</td></tr>\n", r.IntN(500), r.IntN(100))
	}
	header := func(contentType string) http.Header {
		return http.Header{"Content-Type": {contentType}, "Cache-Control": {"no-store"}, "X-Request-Id": {id(22)}, "Date": {"Sun, 22 Nov 2026 15:12:24 GMT"}}
	}
	noise := make([]byte, 64<<10)
	for i := range noise {
		noise[i] = byte(r.Uint32())
	}
	fingerprint := [32]byte([]byte(id(32)))
	return map[string]*remember.Response{
		"empty 204":   {Status: 204, Fingerprint: fingerprint},
		"1 KiB JSON":  {Status: 201, Header: header("application/json"), Body: []byte(payment.String()), Fingerprint: fingerprint},
		"30 KiB HTML": {Status: 200, Header: header("text/html; charset=utf-8"), Body: []byte(page.String()), Fingerprint: fingerprint},
		"64 KiB JPEG": {Status: 200, Header: header("image/jpeg"), Body: noise, Fingerprint: fingerprint},
	}
}

// TestStoredBytes logs how much a master stores of typical responses.
func TestStoredBytes(t *testing.T) {
	t.Parallel()
	sealer := newSealer(t, newKey())
	for name, a := range typical() {
		stored, sealed := len(encode(t, a, nil)), len(encode(t, a, sealer))
		head := *a
		head.Body = nil
		plain := len(encode(t, &head, nil)) + len(a.Body) // a head is too short to be compressed
		t.Logf("%s: %d bytes of body, %d uncompressed, %d stored, %d encrypted", name, len(a.Body), plain, stored, sealed)
		if sealed != stored+32 {
			t.Errorf("%s: %d bytes more if it is encrypted, want 32", name, sealed-stored)
		}
		if plain > len(a.Body)+250 || stored > plain {
			t.Errorf("%s: %d bytes stored", name, stored)
		}
	}
}

func BenchmarkResponse(b *testing.B) {
	sealer := newSealer(b, newKey())
	for name, a := range typical() {
		for form, s := range map[string]*remember.Sealer{"plain": nil, "sealed": sealer} {
			data := encode(b, a, s)
			b.Run(fmt.Sprintf("encode/%s/%s", name, form), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					encode(b, a, s)
				}
				b.ReportMetric(float64(len(data)), "stored_B")
			})
			b.Run(fmt.Sprintf("decode/%s/%s", name, form), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					decode(b, data, s)
				}
			})
		}
	}
}
