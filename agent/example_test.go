package agent_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/caddy-redlock/caddy-redlock/agent"
	"github.com/caddy-redlock/caddy-redlock/redlock"
)

// A program that has a Locker serves it to the programs beside it, here to an HTTP client on a Unix socket. The client holds its lock until it closes
// the response.
func Example() {
	locker, err := redlock.Open([]string{"memory://"}) // in production three redis://…
	if err != nil {
		log.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	socket := filepath.Join(dir, "redlock.sock")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		log.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	served := make(chan error)
	go func() { served <- agent.New(locker).Serve(ctx, 30*time.Second, listener) }() // 30 s for clients that hold locks when it stops

	client := http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}}}
	response, err := client.Post("http://redlock/v1/lock", "application/json", strings.NewReader(`{"key":"order:42"}`))
	if err != nil {
		log.Fatal(err)
	}
	var lock struct{ Fence uint64 }
	err = json.NewDecoder(response.Body).Decode(&lock)
	fmt.Println(response.Status, lock.Fence > 0, err)
	_, err = locker.TryLock(ctx, "order:42")
	fmt.Println(err)
	response.Body.Close()

	stop()
	fmt.Println(<-served, locker.Close())
	// Output:
	// 200 OK true <nil>
	// redlock: lock is held
	// <nil> <nil>
}
