package e2e

import (
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// TestLaravel runs examples/laravel in a real Laravel, in php-fpm behind Caddy, and with a worker of its queue: payments of one order, which
// would lose updates if two ran at once, take turns, and a job whose key is held goes back to the queue. A lock of its cache outlives the
// object, and ends with the process.
func TestLaravel(t *testing.T) {
	t.Parallel()
	if os.Getenv("CLIENTS") != "required" {
		t.Skip("needs php-fpm and Laravel: make clients")
	}
	if _, err := os.Stat("/usr/share/php/Illuminate/Foundation/Application.php"); err != nil {
		t.Skip("NOT TESTED: the packages of this system have no Laravel (php-laravel-framework)")
	}
	site := t.TempDir()
	socket := filepath.Join(site, "s")
	locker := serveAgent(t, socket)
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	index := filepath.Join(root, "test/e2e/testdata/laravel/index.php")
	env := []string{"SITE=" + site, "CLIENT=" + root + "/clients/php", "RECIPE=" + root + "/examples/laravel", "SOCKET=" + socket}
	artisan := func(args ...string) string {
		t.Helper()
		cmd := exec.Command("php", append([]string{index}, args...)...)
		cmd.Env = append(os.Environ(), env...)
		text, code := output(t, cmd)
		if code != 0 || args[0] != "state" && text != "" {
			log, _ := os.ReadFile(filepath.Join(site, "errors"))
			t.Fatalf("%q: exit code %d: %s\n%s", args, code, text, log)
		}
		return text
	}
	requireState := func(when, want string) {
		t.Helper()
		if got := artisan("state"); got != want {
			t.Errorf("%s: %s, want %s", when, got, want)
		}
	}
	artisan("create")
	directives := "env " + strings.ReplaceAll(strings.Join(env, "\nenv "), "=", " ")
	url := runCaddy(t, caddyfile("", "root * "+filepath.Dir(index)+"\nphp_fastcgi "+startFPM(t)+" {\n"+directives+"\n}")).url + "/orders/1/pay"

	const payments = 6
	fences := make([]int, payments)
	var all sync.WaitGroup
	for i := range fences {
		all.Go(func() {
			a := post(t, url)
			for a.status == http.StatusLocked { // it has waited for 2 seconds, on a busy machine
				a = post(t, url)
			}
			var err error
			if fences[i], err = strconv.Atoi(a.body); err != nil || a.status != http.StatusOK {
				t.Errorf("status %d: %s", a.status, a.body)
			}
		})
	}
	all.Wait()
	slices.Sort(fences)
	if distinct := slices.Compact(fences); len(distinct) != payments {
		t.Errorf("%d fencing tokens: %v", len(distinct), distinct)
	}
	requireState("after the payments", "paid 6, queued 0")

	_, unlock := lock(t, locker, "order:1")
	if a := post(t, url); a.status != http.StatusLocked || a.header.Get("Retry-After") == "" {
		t.Errorf("while the order is locked: status %d, Retry-After %q", a.status, a.header.Get("Retry-After"))
	}
	artisan("enqueue")
	artisan("work", "1")
	requireState("a job was tried while the order is locked", "paid 6, queued 1")
	unlock()
	artisan("work")
	requireState("after the job", "paid 7, queued 0")
	for range 2 {
		artisan("keep")
	}
}
