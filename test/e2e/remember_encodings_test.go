package e2e

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// TestRememberedEncodings: a repeat gets an encoding that it accepts, whatever the first request did, and whoever compresses.
func TestRememberedEncodings(t *testing.T) {
	needTime(t)
	t.Parallel()
	const plain = "compressed or not, this is the receipt. "
	receipt := strings.Repeat(plain, 50)
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/plain")
		if !strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
			_, _ = io.WriteString(w, receipt)
			return
		}
		w.Header().Set("Content-Encoding", "gzip")
		packed := gzip.NewWriter(w)
		_, _ = io.WriteString(packed, receipt)
		_ = packed.Close()
	}))
	t.Cleanup(upstream.Close)
	const lock = "redlock {\nidempotency_key required\nscope off\nremember 1h\n}\n"
	proxy := "reverse_proxy " + upstream.Listener.Addr().String()
	for name, site := range map[string]string{
		"the upstream":             lock + proxy,
		"encode":                   "encode gzip\n" + lock + proxy,
		"encode behind":            "route {\n" + lock + "encode gzip\n" + proxy + "\n}",
		"encode, and none to ask":  "encode gzip\n" + lock + "route {\nrequest_header -Accept-Encoding\n" + proxy + "\n}",
		"encode in front of route": "route {\nencode gzip\n" + lock + proxy + "\n}",
	} {
		t.Run(name, func(t *testing.T) {
			c := runCaddy(t, caddyfile("", site))
			client := &http.Client{Transport: &http.Transport{DisableCompression: true}}
			t.Cleanup(client.CloseIdleConnections)
			accepted := []string{"", "gzip", "identity", "zstd", "gzip;q=0"}
			for i, first := range accepted {
				for _, accept := range append([]string{first}, accepted...) {
					r := request(c.url+"/pay", "Idempotency-Key", fmt.Sprint("id-", i))
					if accept != "" {
						r.Header.Set("Accept-Encoding", accept)
					}
					response, err := client.Do(r)
					if err != nil {
						t.Fatal(err)
					}
					body, err := io.ReadAll(response.Body)
					_ = response.Body.Close()
					if err != nil {
						t.Fatal(err)
					}
					encoding := response.Header.Get("Content-Encoding")
					if encoding == "gzip" && accept == "gzip" {
						unpacked, err := gzip.NewReader(bytes.NewReader(body))
						if err != nil {
							t.Fatal(err)
						}
						body, _ = io.ReadAll(unpacked)
						encoding = ""
					}
					if encoding != "" || string(body) != receipt {
						t.Errorf("first %q, then %q: %d, encoding %q, %.60q", first, accept, response.StatusCode, encoding, body)
					}
				}
			}
		})
	}
}
