package e2e

import (
	"strings"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/internal/tests/redistest"
)

// TestMastersWait: a process that could not be deployed, because its password is wrong, doesn't pass the gate, though Caddy serves; it
// does as soon as the masters know the password, and one that is right does after the restart guard.
func TestMastersWait(t *testing.T) {
	t.Parallel()
	servers := redistest.Start(t, 3)
	for _, s := range servers {
		if err := s.Client().ConfigSet(t.Context(), "requirepass", "right").Err(); err != nil {
			t.Fatal(err)
		}
	}
	c := runCaddy(t, caddyfile(mastersOption(servers, "password wrong"), "redlock /orders/* order:{path.1}\nrespond ok"))
	if a := get(t, c.url+"/free"); a.status != 200 {
		t.Fatalf("status %d", a.status)
	}
	text, _, code := redlockCommand(t, "masters", "--wait", "500ms", "--address", c.admin)
	if code != 2 || !strings.Contains(text, "WRONGPASS") || !strings.Contains(text, "NO LOCK CAN BE TAKEN") {
		t.Errorf("with the wrong password: code %d\n%s", code, text)
	}
	passed := make(chan int, 1)
	go func() {
		_, _, code := redlockCommand(t, "masters", "--wait", bound.String(), "--address", c.admin)
		passed <- code
	}()
	for _, s := range servers {
		if err := s.Client().Do(t.Context(), "ACL", "SETUSER", "default", ">wrong").Err(); err != nil {
			t.Error(err)
		}
	}
	select {
	case code := <-passed:
		if code != 0 {
			t.Errorf("code %d", code)
		}
	case <-time.After(2 * bound):
		t.Error("it still waits")
	}
}
