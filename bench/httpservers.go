package main

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// proxy is a web server in front of the backend, alone or with a lock for each order.
type proxy struct {
	name    string
	masters int                                               // how many redis-servers it locks on
	config  func(dir, listen, backend, masters string) string // its configuration file
	command func(binary, config string) []string
	nginx   bool

	unobserved bool // Caddy without metrics of the locks

	addr    string
	cmd     *exec.Cmd
	servers []*server
}

const (
	caddyAlone  = "Caddy"
	caddyBare   = "Caddy, bare lock on 3 masters"
	caddyLocks  = "Caddy, redlock on 3 masters"
	caddyMemory = "Caddy, redlock in memory"
	nginxAlone  = "nginx"
	nginxLimit  = "nginx, limit_conn"

	caddyUnobserved       = "Caddy, redlock on 3 masters, no metrics"
	caddyUnobservedMemory = "Caddy, redlock in memory, no metrics"
)

const (
	orderRule    = "redlock /orders/*/pay order:{path.1}"
	threeMasters = "redlock {\n\t\tmasters MASTERS\n\t\trestart_guard off\n\t}"
)

// caddyWith returns what makes the Caddyfile of a site with a global option and a directive.
func caddyWith(option, lock string) func(_, listen, backend, addrs string) string {
	return func(_, listen, backend, addrs string) string {
		return strings.ReplaceAll(fmt.Sprintf(caddyfile, option, listen, lock, backend), "MASTERS", addrs)
	}
}

func runCaddyfile(binary, config string) []string {
	return []string{binary, "run", "--adapter", "caddyfile", "--config", config}
}

func proxies() []*proxy {
	const memory = "redlock {\n\t\tmasters memory://\n\t}"
	nginx := func(limit string) func(dir, listen, backend, _ string) string {
		return func(dir, listen, backend, _ string) string {
			return strings.NewReplacer("DIR", dir, "LISTEN", listen, "BACKEND", backend, "LIMIT", limit).Replace(nginxConfig)
		}
	}
	start := func(_, config string) []string { return []string{"nginx", "-c", config, "-e", "stderr"} }
	return []*proxy{
		{name: caddyAlone, config: caddyWith("", ""), command: runCaddyfile},
		{name: caddyBare, masters: 3, config: caddyWith("", "bare_lock MASTERS"), command: runCaddyfile},
		{name: caddyLocks, masters: 3, config: caddyWith(threeMasters, orderRule), command: runCaddyfile},
		{name: caddyUnobserved, masters: 3, config: caddyWith(threeMasters, orderRule), command: runCaddyfile, unobserved: true},
		{name: caddyMemory, config: caddyWith(memory, orderRule), command: runCaddyfile},
		{name: caddyUnobservedMemory, config: caddyWith(memory, orderRule), command: runCaddyfile, unobserved: true},
		{name: nginxAlone, config: nginx(""), command: start, nginx: true},
		{name: nginxLimit, config: nginx("limit_conn orders 1;"), command: start, nginx: true},
	}
}

const caddyfile = `{
	admin off
	auto_https off
	persist_config off
	%s
}
http://%s {
	%s
	reverse_proxy %s
}
`

// nginxConfig keeps connections to the backend open, as Caddy does by default; nginx's default is a
// new one for each request.
const nginxConfig = `daemon off;
worker_processes auto;
pid DIR/nginx.pid;
error_log DIR/error.log crit;
events { worker_connections 4096; }
http {
	access_log off;
	client_body_temp_path DIR/body;
	proxy_temp_path DIR/proxy;
	fastcgi_temp_path DIR/fastcgi;
	uwsgi_temp_path DIR/uwsgi;
	scgi_temp_path DIR/scgi;
	keepalive_requests 1000000;
	upstream backend { server BACKEND; keepalive 256; keepalive_requests 1000000; }
	map $uri $order { ~^/orders/([^/]+)/pay$ $1; }
	limit_conn_zone $order zone=orders:10m;
	server {
		listen LISTEN;
		location / {
			LIMIT
			proxy_pass http://backend;
			proxy_http_version 1.1;
			proxy_set_header Connection "";
			proxy_set_header Host $host;
		}
	}
}
`

func (p *proxy) start(dir, binary, backend string) (err error) {
	if p.servers, err = startServers(p.masters); err != nil {
		return err
	}
	var urls []string
	for _, s := range p.servers {
		urls = append(urls, "redis://"+s.addr)
	}
	if p.addr, err = freeAddr(); err != nil {
		return err
	}
	dir = filepath.Join(dir, strings.NewReplacer(" ", "-", ",", "").Replace(p.name))
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	config := filepath.Join(dir, "config")
	if err := os.WriteFile(config, []byte(p.config(dir, p.addr, backend, strings.Join(urls, " "))), 0o644); err != nil {
		return err
	}
	args := p.command(binary, config)
	p.cmd = exec.Command(args[0], args[1:]...)
	var output bytes.Buffer
	p.cmd.Stdout, p.cmd.Stderr = &output, &output
	p.cmd.Env = append(os.Environ(), "HOME="+dir)
	if err := p.cmd.Start(); err != nil {
		return err
	}
	startedServers.Store(p.cmd.Process, nil)
	if err := answers("http://" + p.addr + "/orders/1/pay"); err != nil {
		p.stop()
		return fmt.Errorf("%s: %w\n%s", p.name, err, &output)
	}
	return nil
}

func answers(url string) (err error) {
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		var answer *http.Response
		if answer, err = http.Get(url); err != nil {
			continue
		}
		_ = answer.Body.Close()
		if answer.StatusCode == http.StatusOK {
			return nil
		}
		err = fmt.Errorf("%s answers %s", url, answer.Status)
	}
	return err
}

func (p *proxy) stop() {
	if p.cmd != nil && p.cmd.Process != nil {
		startedServers.Delete(p.cmd.Process)
		_ = p.cmd.Process.Signal(syscall.SIGTERM) // nginx ends its workers
		kill := time.AfterFunc(5*time.Second, func() { _ = p.cmd.Process.Kill() })
		_ = p.cmd.Wait()
		kill.Stop()
	}
	stopServers(p.servers)
}

// cpu is the CPU time so far of the proxy, with nginx's workers, and of its redis-servers.
func (p *proxy) cpu() (own, masters time.Duration, err error) {
	pids := []int{p.cmd.Process.Pid}
	if p.nginx {
		pids = append(pids, childrenOf(p.cmd.Process.Pid)...)
	}
	if own, err = cpuOf(pids); err != nil {
		return 0, 0, err
	}
	r, err := read(p.servers, nil)
	return own, r.cpu, err
}

// childrenOf finds the processes whose parent this is.
func childrenOf(parent int) (pids []int) {
	paths, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, path := range paths {
		if fields := stat(path); len(fields) > 1 && fields[1] == strconv.Itoa(parent) {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(path)))
			pids = append(pids, pid)
		}
	}
	return pids
}

// stat gives the fields of /proc/PID/stat from the third on: state, parent, ….
func stat(path string) []string {
	text, _ := os.ReadFile(path) // it may have ended
	_, fields, _ := strings.Cut(string(text), ") ")
	return strings.Fields(fields)
}

// cpuOf is the CPU time so far of the processes, user and system.
func cpuOf(pids []int) (time.Duration, error) {
	ticks := 0
	for _, pid := range pids {
		fields := stat(fmt.Sprintf("/proc/%d/stat", pid))
		if len(fields) < 13 {
			return 0, fmt.Errorf("process %d has ended", pid)
		}
		for _, field := range fields[11:13] {
			n, err := strconv.Atoi(field)
			if err != nil {
				return 0, err
			}
			ticks += n
		}
	}
	return time.Duration(ticks) * 10 * time.Millisecond, nil // USER_HZ is 100 on Linux
}

// freeAddr is an address on which nobody listens. Its port is below those of outgoing connections, of which there
// are so many here that one would take it.
func freeAddr() (addr string, err error) {
	for range 10 {
		addr = fmt.Sprintf("127.0.0.1:%d", 10000+rand.IntN(20000))
		var listener net.Listener
		if listener, err = net.Listen("tcp", addr); err == nil {
			return addr, listener.Close()
		}
	}
	return "", err
}
