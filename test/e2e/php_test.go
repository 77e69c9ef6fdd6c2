package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A lost lease does not stop PHP, but PHP's own limit does: if that is below max_hold, a script that hangs never runs beside the next
// one with its key.
func TestUpstreamPHPEndsByItsOwnLimit(t *testing.T) {
	needUpstreams(t)
	dir := t.TempDir()
	log := filepath.Join(dir, "log")
	// Each run writes its fencing token repeatedly, for much longer than it may hold the lock.
	script := `<?php for ($i = 0; $i < 100; $i++) { file_put_contents('` + log + `', $_SERVER['HTTP_FENCING_TOKEN']."\n", FILE_APPEND); usleep(50000); }`
	if err := os.WriteFile(filepath.Join(dir, "pay.php"), []byte(script), 0o600); err != nil {
		t.Fatal(err)
	}
	fpm := startFPM(t, "request_terminate_timeout = 1s")
	c := runCaddy(t, caddyfile("", "root * "+dir+"\nredlock pay {\nmax_hold 4s\nwait 1m\n}\nphp_fastcgi "+fpm))
	for _, a := range postAll(t, c.url+"/pay.php", c.url+"/pay.php")() {
		if a.status < 500 {
			t.Errorf("status %d of a script that was ended", a.status)
		}
	}
	text, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	runs := 0
	last := ""
	for _, token := range strings.Fields(string(text)) {
		if token != last {
			runs, last = runs+1, token
		}
	}
	if runs != 2 {
		t.Errorf("the two runs took turns %d times, want one after the other:\n%s", runs, text)
	}
}
