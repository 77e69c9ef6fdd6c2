package stacks

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/caddy-redlock/caddy-redlock/redlock"
)

func TestStacks(t *testing.T) {
	proxied := func(locker *redlock.Locker, pay http.HandlerFunc) http.Handler {
		upstream := httptest.NewServer(pay)
		t.Cleanup(upstream.Close)
		address, err := url.Parse(upstream.URL)
		if err != nil {
			t.Fatal(err)
		}
		return ReverseProxy(locker, address)
	}
	for name, stack := range map[string]func(*redlock.Locker, http.HandlerFunc) http.Handler{
		"ServeMux": ServeMux, "chi": Chi, "echo": Echo, "gin": Gin, "ReverseProxy": proxied,
	} {
		t.Run(name, func(t *testing.T) { testStack(t, stack) })
	}
}

func testStack(t *testing.T, stack func(*redlock.Locker, http.HandlerFunc) http.Handler) {
	masters, err := redlock.Dial("memory://")
	if err != nil {
		t.Fatal(err)
	}
	locker, err := redlock.New(masters)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = locker.Close() })
	next := make(chan bool)
	server := httptest.NewServer(stack(locker, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		w.Header().Set("Content-Type", "text/event-stream")
		w.WriteHeader(http.StatusCreated)
		_, _ = fmt.Fprintf(w, "%s with fence: %v\n", body, r.Header.Get("Fencing-Token") != "")
		if err := http.NewResponseController(w).Flush(); err != nil {
			t.Errorf("flush: %v", err)
		}
		<-next
		_, _ = io.WriteString(w, "paid\n")
	}))
	t.Cleanup(server.Close)
	pay := func(order string) *http.Response {
		t.Helper()
		response, err := http.Post(server.URL+"/orders/"+order+"/pay", "text/plain", strings.NewReader("10 euros"))
		if err != nil {
			t.Fatal(err)
		}
		return response
	}
	first := pay("42") // its first line has come, while it runs
	defer first.Body.Close()
	lines := bufio.NewScanner(first.Body)
	if !lines.Scan() || first.StatusCode != http.StatusCreated || lines.Text() != "10 euros with fence: true" {
		t.Errorf("status %d, first line %q", first.StatusCode, lines.Text())
	}
	second := pay("42")
	_ = second.Body.Close()
	if second.StatusCode != http.StatusLocked || second.Header.Get("Retry-After") == "" {
		t.Errorf("the same order: %d, %v", second.StatusCode, second.Header)
	}
	other := pay("43")
	defer other.Body.Close()
	if other.StatusCode != http.StatusCreated {
		t.Errorf("another order: %d", other.StatusCode)
	}
	close(next)
	if !lines.Scan() || lines.Text() != "paid" {
		t.Errorf("last line %q", lines.Text())
	}
	third := pay("42")
	_ = third.Body.Close()
	if third.StatusCode != http.StatusCreated {
		t.Errorf("the order, once more: %d", third.StatusCode)
	}
}
