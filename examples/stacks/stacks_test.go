package stacks

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/caddy-redlock/caddy-redlock/redlock"
	"github.com/caddy-redlock/caddy-redlock/redlock/redlocktest"
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
		"ServeMux": ServeMux, "chi": Chi, "echo": Echo, "gin": Gin, "gorilla": Gorilla, "ReverseProxy": proxied,
	} {
		t.Run(name, func(t *testing.T) { testStack(t, stack) })
	}
}

// The upstream goes on with the payment after the client has left: the lock is held until the payment is done.
func TestReverseProxyRunsToTheEnd(t *testing.T) {
	begun, goOn, written, end := make(chan bool, 1), make(chan bool), make(chan error, 1), make(chan bool)
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, err := io.WriteString(w, "paying\n")
		_ = http.NewResponseController(w).Flush()
		begun <- true
		<-goOn
		for range 256 { // more than connections hold: somebody must read it
			if err == nil {
				_, err = w.Write(make([]byte, 64<<10))
			}
		}
		written <- err
		<-end
	}))
	t.Cleanup(upstream.Close)
	address, err := url.Parse(upstream.URL)
	if err != nil {
		t.Fatal(err)
	}
	locker := redlocktest.New(t)
	proxy, gone := ReverseProxy(locker, address), make(chan bool)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		client := r.Context()
		context.AfterFunc(client, func() { close(gone) })
		proxy.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	response, err := http.Post(server.URL+"/orders/42/pay", "text/plain", strings.NewReader("10 euros"))
	if err != nil {
		t.Fatal(err)
	}
	<-begun
	_ = response.Body.Close() // the client leaves
	<-gone
	close(goOn)
	if err := <-written; err != nil {
		t.Errorf("the upstream was left: %v", err)
	}
	if early, err := locker.TryLock(t.Context(), "order:42"); err == nil {
		_ = early.Unlock()
		t.Error("the order is free while it is being paid")
	} else if !errors.Is(err, redlock.ErrHeld) {
		t.Errorf("another for the order: %v", err)
	}
	close(end)
	lock, err := locker.Lock(t.Context(), "order:42")
	if err != nil {
		t.Fatal(err)
	}
	_ = lock.Unlock()
}

func testStack(t *testing.T, stack func(*redlock.Locker, http.HandlerFunc) http.Handler) {
	locker := redlocktest.New(t)
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
		t.Errorf("last line %q: %v", lines.Text(), lines.Err())
	}
	if lines.Scan() { // the end of the response comes behind the lock
		t.Errorf("one more line, %q", lines.Text())
	}
	third := pay("42")
	_ = third.Body.Close()
	if third.StatusCode != http.StatusCreated {
		t.Errorf("the order, once more: %d", third.StatusCode)
	}
}
