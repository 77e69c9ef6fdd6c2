package simnet_test

import (
	"context"
	"errors"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock"
	"github.com/caddy-redlock/caddy-redlock/redlock/simnet"
)

// TestExample is what the package's comment shows, and what a Locker makes of two servers that are away.
func TestExample(t *testing.T) {
	simnet.Run(t, 3, func(t *testing.T, net *simnet.Net) {
		l := net.Locker(t)
		lock, err := l.Lock(t.Context(), "key")
		if err != nil {
			t.Fatal(err)
		}
		net.Servers[0].Kill()
		net.Servers[1].Hang()
		time.Sleep(5 * time.Second)
		net.Servers[1].Resume()
		net.Addresses[2].Set(simnet.Weather{Delay: 20 * time.Millisecond})
		time.Sleep(time.Hour)
		if err := lock.Err(); err != nil {
			t.Error(err)
		}
		net.Servers[1].Kill()
		<-lock.Context().Done()
		if err := context.Cause(lock.Context()); !errors.Is(err, redlock.ErrLost) {
			t.Errorf("with one server of three: %v", err)
		}
		if _, err := l.TryLock(t.Context(), "another"); !errors.Is(err, redlock.ErrNoQuorum) {
			t.Errorf("with one server of three: %v", err)
		}
		net.RequireNoKeys(t)
	})
}

// TestNoProductHasIt: what tests need is in no product.
func TestNoProductHasIt(t *testing.T) {
	text, err := exec.Command("go", "list", "-deps", "../..", "../../agent", "../../cmd/caddy", "../../cmd/redlock", "../../console", "../../metrics", "../../middleware").CombinedOutput()
	if err != nil {
		t.Fatalf("go list: %v: %s", err, text)
	}
	for path := range strings.FieldsSeq(string(text)) {
		if path == "testing" || strings.HasSuffix(path, "/simnet") || strings.HasSuffix(path, "/redlocktest") {
			t.Errorf("a product needs %s", path)
		}
	}
}
