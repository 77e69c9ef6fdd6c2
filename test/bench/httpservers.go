package main

import (
	"bytes"
	"errors"
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

// proxy is a Caddy in front of the backend, alone or with a lock for each order.
type proxy struct {
	name    string
	masters int    // how many redis-servers it locks on
	option  string // its global option
	lock    string // its directive
	loads   []string

	addr    string
	cmd     *exec.Cmd
	servers []*server
}

const (
	caddyAlone = "no lock"
	caddyBare  = "bare lock on 3 masters" // behind the same matcher: what Caddy takes for that isn't the lock's
	caddyLocks = "redlock on 3 masters"
)

func proxies() []*proxy {
	const option = "redlock {\n\t\tmasters %s\n\t\trestart_guard off\n\t\tbody_budget 1GiB\n\t}"
	locks := func(name, key, settings string, loads ...string) *proxy {
		return &proxy{name: name, masters: 3, option: fmt.Sprintf(option, "MASTERS"), lock: "redlock /orders/*/pay " + key + " {\n\t\t" + settings + "\n\t}", loads: loads}
	}
	const order, delivery = "order:{path.1}", "dedupe {path.1}\n\t\t"
	const remember = "remember 2m\n\t\tscope off"
	return []*proxy{
		{name: caddyAlone, loads: []string{ownKeys, sameKey, repeats, longBody, longerBody}},
		{name: caddyBare, masters: 3, lock: "bare_lock /orders/*/pay MASTERS", loads: []string{ownKeys, sameKey}},
		locks(caddyLocks, order, "", ownKeys, sameKey),
		locks(caddyLocks+", dedupe", order, delivery, ownKeys),
		locks(caddyLocks+", remember", order, delivery+remember, ownKeys, repeats),
		locks(caddyLocks+", idempotency-key", "", "preset idempotency-key\n\t\t"+remember, ownKeys, repeats),
		locks(caddyLocks+", buffer_response", order, "max_body 16MiB\n\t\tbuffer_response", longBody, longerBody),
		{name: "redlock in memory", option: fmt.Sprintf(option, "memory://"), lock: "redlock /orders/*/pay " + order, loads: []string{ownKeys, sameKey}},
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
	text := strings.ReplaceAll(fmt.Sprintf(caddyfile, p.option, p.addr, p.lock, backend), "MASTERS", strings.Join(urls, " "))
	if err := os.WriteFile(config, []byte(text), 0o644); err != nil {
		return err
	}
	p.cmd = exec.Command(binary, "run", "--adapter", "caddyfile", "--config", config)
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
		var request *http.Request
		if request, err = http.NewRequest(http.MethodPost, url, nil); err != nil {
			return err
		}
		request.Header.Set("Idempotency-Key", "ready")
		var response *http.Response
		if response, err = http.DefaultClient.Do(request); err != nil {
			continue
		}
		_ = response.Body.Close()
		if response.StatusCode == http.StatusOK {
			return nil
		}
		err = fmt.Errorf("%s answers %s", url, response.Status)
	}
	return err
}

func (p *proxy) stop() {
	if p.cmd != nil && p.cmd.Process != nil {
		startedServers.Delete(p.cmd.Process)
		_ = p.cmd.Process.Signal(syscall.SIGTERM)
		kill := time.AfterFunc(5*time.Second, func() { _ = p.cmd.Process.Kill() })
		_ = p.cmd.Wait()
		kill.Stop()
	}
	stopServers(p.servers)
}

// used is the CPU time so far of the proxy, and what its redis-servers have done.
func (p *proxy) used() (own time.Duration, masters reading, err error) {
	if own, err = cpuOf(p.cmd.Process.Pid); err != nil {
		return 0, reading{}, err
	}
	masters, err = read(p.servers, kindOf(nameOwn).sends)
	return own, masters, err
}

// cpuOf is the CPU time so far of a process, user and system.
func cpuOf(pid int) (time.Duration, error) {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)) // it may have ended
	_, after, _ := strings.Cut(string(text), ") ")
	fields := strings.Fields(after) // from the third on: state, parent, …
	if len(fields) < 13 {
		return 0, fmt.Errorf("process %d has ended", pid)
	}
	user, errUser := strconv.Atoi(fields[11])
	system, errSystem := strconv.Atoi(fields[12])
	return time.Duration(user+system) * 10 * time.Millisecond, errors.Join(errUser, errSystem) // USER_HZ is 100 on Linux
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
