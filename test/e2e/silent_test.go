package e2e

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// TestClientsThatDoNotRead: one connection of HTTP/2 that never opens a window has 50 responses of 128 KiB, and keeps no key.
func TestClientsThatDoNotRead(t *testing.T) {
	needTime(t)
	t.Parallel()
	const streams = 50
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, strings.Repeat("0123456789abcdef", 1<<13)) // of unknown length, which Caddy flushes
	}))
	t.Cleanup(upstream.Close)
	c := runCaddy(t, caddyfile("servers {\nprotocols h1 h2c\n}\n", `
		redlock order:{path.1:int} {
			buffer_response
			response_timeout 5m
			max_body 2MiB
		}
		reverse_proxy `+upstream.Listener.Addr().String()))
	address, err := url.Parse(c.url)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := net.Dial("tcp", address.Host)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	_, _ = io.WriteString(conn, http2.ClientPreface)
	framer := http2.NewFramer(conn, conn)
	_ = framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
	var block bytes.Buffer
	encoder := hpack.NewEncoder(&block)
	for i := range streams {
		block.Reset()
		for _, h := range [][2]string{{":method", "POST"}, {":scheme", "http"}, {":authority", address.Host}, {":path", fmt.Sprintf("/orders/%d/pay", i)}} {
			_ = encoder.WriteField(hpack.HeaderField{Name: h[0], Value: h[1]})
		}
		_ = framer.WriteHeaders(http2.HeadersFrameParam{StreamID: uint32(2*i + 1), BlockFragment: block.Bytes(), EndStream: true, EndHeaders: true})
	}
	for began := 0; began < streams; {
		frame, err := framer.ReadFrame()
		if err != nil {
			t.Fatalf("after %d responses have begun: %v", began, err)
		}
		if headers, ok := frame.(*http2.HeadersFrame); ok && !headers.StreamEnded() {
			began++
		}
	}
	for i := range streams {
		eventually(t, fmt.Sprintf("order %d is free", i), func() bool {
			return post(t, fmt.Sprintf("%s/orders/%d/pay", c.url, i)).status == http.StatusOK
		})
	}
}
