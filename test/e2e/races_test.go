package e2e

import "testing"

// TestRaceOfOurs tests which reports of the race detector runCaddy takes for races of ours.
func TestRaceOfOurs(t *testing.T) {
	const (
		begin     = "\nWARNING: DATA RACE\n"
		read      = "Read at 0x00c0 by goroutine 7:\n"
		write     = "\nPrevious write at 0x00c0 by goroutine 8:\n"
		length    = "  github.com/caddyserver/caddy/v2/modules/caddyhttp.(*lengthReader).Read()\n      /go/server.go:1607 +0x84\n"
		ourBody   = "  github.com/caddy-redlock/caddy-redlock/middleware.(*body).Read()\n      /go/body.go:128 +0x62c\n"
		ourStream = "  github.com/caddy-redlock/caddy-redlock/redlock.(*stream).flush()\n      /go/stream.go:156 +0x34e\n"
		transport = "  net/http.(*transferWriter).writeBody()\n      /go/transfer.go:377 +0x7b2\n"
		proxy     = "  github.com/caddyserver/caddy/v2/modules/caddyhttp/reverseproxy.(*Handler).ServeHTTP()\n      /go/reverseproxy.go:599 +0x17a4\n"
		ourRule   = "  github.com/caddy-redlock/caddy-redlock/middleware.(*Rule).Serve()\n      /go/rule.go:9 +0x1\n"
		created   = "\nGoroutine 8 (running) created at:\n" + ourRule
	)
	for name, test := range map[string]struct {
		report string
		want   bool
	}{
		"none":                          {"a log line of caddy-redlock/", false},
		"ours, at the second access":    {begin + read + length + transport + write + ourStream + created, true},
		"ours, which calls Caddy's":     {begin + read + length + ourRule + write + length + transport, true},
		"within our body":               {begin + read + ourBody + transport + write + length + transport, true},
		"Caddy's, behind our handler":   {begin + read + length + transport + write + length + proxy + ourRule + created, false},
		"Caddy's, which reads our body": {begin + read + length + ourBody + transport + write + length + ourBody + transport + created, false},
	} {
		if got := raceOfOurs(test.report); got != test.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
