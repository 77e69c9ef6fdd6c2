package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// between has the second proxies that may stand between ours and an upstream, as express+nginx names one: the command, with the
// configuration that it gets as a file CONFIG. They have one process, which is killed in the end.
var between = map[string]struct {
	command []string
	config  string
}{
	"nginx":    {[]string{"/usr/sbin/nginx", "-c", "CONFIG"}, strings.ReplaceAll(nginxConfig, "URI", "")},
	"nginxuri": {[]string{"/usr/sbin/nginx", "-c", "CONFIG"}, strings.ReplaceAll(nginxConfig, "URI", "/")}, // which cleans the path
	"apache": {[]string{"/usr/sbin/apache2", "-X", "-f", "CONFIG"}, `ServerRoot DIR
ServerName localhost
PidFile DIR/pid
ErrorLog DIR/log
Listen LISTEN
LoadModule mpm_event_module /usr/lib/apache2/modules/mod_mpm_event.so
LoadModule authz_core_module /usr/lib/apache2/modules/mod_authz_core.so
LoadModule proxy_module /usr/lib/apache2/modules/mod_proxy.so
LoadModule proxy_http_module /usr/lib/apache2/modules/mod_proxy_http.so
AllowEncodedSlashes On
ProxyPass / http://UPSTREAM/ nocanon
`},
	"haproxy": {[]string{"/usr/sbin/haproxy", "-db", "-f", "CONFIG"}, `defaults
	mode http
	timeout connect 10s
	timeout client 60s
	timeout server 60s
listen all
	bind LISTEN
	server upstream UPSTREAM
`},
}

const nginxConfig = `daemon off;
master_process off;
pid DIR/pid;
error_log DIR/log;
events {}
http {
	access_log off;
	client_body_temp_path DIR/body;
	proxy_temp_path DIR/proxy;
	fastcgi_temp_path DIR/fastcgi;
	uwsgi_temp_path DIR/uwsgi;
	scgi_temp_path DIR/scgi;
	server {
		listen LISTEN;
		location / {
			proxy_pass http://UPSTREAMURI;
		}
	}
}
`

// startBetween runs a second proxy in front of an upstream until the end of the test, and returns its address.
func startBetween(t *testing.T, name, upstream string) string {
	t.Helper()
	proxy, ok := between[name]
	if !ok {
		t.Fatalf("%q is no proxy", name)
	}
	addr, dir := freeAddr(t), t.TempDir()
	config := filepath.Join(dir, "config")
	text := strings.NewReplacer("DIR", dir, "LISTEN", addr, "UPSTREAM", upstream).Replace(proxy.config)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(proxy.command[0], proxy.command[1:]...)
	for i, arg := range cmd.Args {
		if arg == "CONFIG" {
			cmd.Args[i] = config
		}
	}
	startProgram(t, name, cmd, addr)
	return addr
}

// named returns what the name of an upstream consists of: express+nginx is express behind nginx.
func named(name string) (framework, proxy string) {
	framework, proxy, _ = strings.Cut(name, "+")
	return framework, proxy
}

// startProgram runs a server until the end of the test.
func startProgram(t *testing.T, name string, cmd *exec.Cmd, addr string) {
	t.Helper()
	log := new(safeBuffer)
	cmd.Stdout, cmd.Stderr, cmd.WaitDelay = log, log, bound
	if err := cmd.Start(); err != nil {
		t.Fatalf("%s: %v; run make upstreams", name, err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if text := log.String(); t.Failed() {
			t.Logf("%s's log ends with:\n%s", name, text[max(0, len(text)-2000):])
		}
	})
	eventually(t, fmt.Sprintf("%s listens", name), func() bool { return listens(addr) })
}
