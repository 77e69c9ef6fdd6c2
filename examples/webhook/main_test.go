package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock/redlocktest"
)

func deliver(t *testing.T, server, sender, event string) int {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, server+"/webhooks/"+sender, nil)
	if err != nil {
		t.Fatal(err)
	}
	if event != "" {
		req.Header.Set("Webhook-Id", event)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Error(err)
		return 0
	}
	_ = resp.Body.Close()
	return resp.StatusCode
}

func TestOneDeliveryOfAnEventAtATime(t *testing.T) {
	locker := redlocktest.New(t)

	started, finish := make(chan string, 4), make(chan struct{})
	work := func(_ context.Context, event string) error {
		started <- event
		<-finish
		return nil
	}
	server := httptest.NewServer(newHandler(locker, &receiver{work: work}))
	defer server.Close()

	first, other := make(chan int, 1), make(chan int, 1)
	go func() { first <- deliver(t, server.URL, "shop", "evt_1") }()
	<-started
	if status := deliver(t, server.URL, "shop", "evt_1"); status != http.StatusLocked {
		t.Errorf("same event meanwhile: status %d, want 423", status)
	}
	if status := deliver(t, server.URL, "shop", ""); status != http.StatusBadRequest {
		t.Errorf("no Webhook-Id: status %d, want 400", status)
	}
	go func() { other <- deliver(t, server.URL, "bank", "evt_1") }()
	<-started // the same id of another sender runs beside it
	close(finish)
	if a, b := <-first, <-other; a != http.StatusOK || b != http.StatusOK {
		t.Errorf("status %d and %d, want 200 and 200", a, b)
	}
	if status := deliver(t, server.URL, "shop", "evt_1"); status != http.StatusOK || len(started) != 0 {
		t.Errorf("later delivery: status %d, and %d runs of the work; want 200 and none", status, len(started))
	}
}

func TestRunStopsWhenToldTo(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := listener.Addr().String()
	_ = listener.Close()

	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- run(ctx, addr, "memory://") }()
	for up := false; !up; {
		select {
		case err := <-ended:
			t.Fatalf("run has ended: %v", err)
		case <-time.After(10 * time.Millisecond):
		}
		if resp, err := http.Get(fmt.Sprintf("http://%s/", addr)); err == nil {
			_ = resp.Body.Close()
			up = true
		}
	}
	stop()
	if err := <-ended; err != nil {
		t.Errorf("run: %v", err)
	}
	if err := run(t.Context(), addr, "http://127.0.0.1"); err == nil {
		t.Error("run takes a URL that is not of a Redis server")
	}
}
