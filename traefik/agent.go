package traefik

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log"
	"net"
	"net/url"
	"os"
	"strings"
	"sync"
	"time"
)

// version is the version of the agent's protocol that this plugin speaks.
const version = "1"

type agent struct {
	address string
	network string // unix or tcp
	target  string
	secure  *tls.Config // nil: without TLS
	local   bool        // the agent runs on this machine, and so has the same clock
	head    string      // the head of each request, behind its path
	open    func(ctx context.Context) (net.Conn, error)

	mu       sync.Mutex
	idle     []*conn   // the connection that was used last is the last one
	sweeps   int       // how often sweep has run
	sweeping bool      // sweep will run again
	trouble  string    // why the agent is away; "" if it is not
	since    time.Time // when the trouble was last found
	hangs    bool      // it has not answered in time
	asking   bool      // a request asks whether it still hangs
	asked    time.Time // when that was last known
}

var (
	agentsMu sync.Mutex
	agents   = map[string]*agent{} // so that all routers share the connections, also those of the next configuration
)

// agentAt returns the agent at an address. All middlewares with this address, token and CA share it.
func agentAt(address, token, ca string) (*agent, error) {
	agentsMu.Lock()
	defer agentsMu.Unlock()
	pem := []byte{}
	if ca != "" {
		var err error
		pem, err = os.ReadFile(ca)
		if err != nil {
			return nil, fmt.Errorf("ca: %w", err)
		}
	}
	id := address + "\x00" + token + "\x00" + string(pem) // the certificates may be renewed
	if a := agents[id]; a != nil {
		return a, nil
	}
	a := &agent{address: address, network: "tcp"}
	if path := strings.TrimPrefix(address, "unix:"); path != address && strings.Trim(path, "/") != "" {
		a.network = "unix"
		a.target = "/" + strings.TrimLeft(path, "/")
		a.local = true
	} else {
		u, err := url.Parse(address)
		if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" || u.User != nil || strings.Trim(u.Path, "/") != "" || u.RawQuery != "" {
			return nil, errors.New("want unix:/path/to/socket, http://host:port, or https://host:port")
		}
		if u.Scheme == "https" {
			a.secure = &tls.Config{}
		}
		port := u.Port()
		if port == "" {
			port = u.Scheme
		}
		a.target = net.JoinHostPort(u.Hostname(), port)
	}
	if ca != "" {
		if a.secure == nil {
			return nil, errors.New("ca: want it with https://")
		}
		a.secure.RootCAs = x509.NewCertPool()
		if !a.secure.RootCAs.AppendCertsFromPEM(pem) {
			return nil, errors.New("ca: the file has no certificate in PEM")
		}
	}
	a.open = func(ctx context.Context) (net.Conn, error) {
		if a.secure != nil {
			return (&tls.Dialer{Config: a.secure}).DialContext(ctx, a.network, a.target)
		}
		return (&net.Dialer{}).DialContext(ctx, a.network, a.target)
	}
	if strings.ContainsAny(token, "\r\n") {
		return nil, errors.New("the token must be one line")
	}
	a.head = " HTTP/1.1\r\nHost: redlock\r\nContent-Type: application/x-ndjson\r\nTransfer-Encoding: chunked\r\nRedlock-Agent: " + version + "\r\n"
	if token != "" {
		a.head += "Authorization: Bearer " + token + "\r\n"
	}
	a.head += "\r\n"
	agents[id] = a
	return a, nil
}

// opening returns the beginning of a request: its head, and the first part of its body.
func (a *agent) opening(path string, body []byte) []byte {
	return append([]byte("POST "+path+a.head), chunk(body)...)
}

// wasAway reports whether the agent was away a moment ago. In this case, a configuration with many routers doesn't wait for the
// agent at each router.
func (a *agent) wasAway() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.trouble != "" && time.Since(a.since) < loadWithin
}

// away logs why the agent can't be used, once for each reason.
func (a *agent) away(name string, err error) {
	a.mu.Lock()
	known := a.trouble == err.Error()
	a.trouble = err.Error()
	a.since = time.Now()
	if !a.hangs && isSilence(err) {
		a.hangs = true
		a.asked = time.Time{} // one lost packet is enough: the next request finds out, and the others don't wait for that
	}
	a.mu.Unlock()
	if !known {
		log.Printf("redlock: middleware %s: no lock can be taken with the agent at %s: %v", name, a.address, err)
	}
}

func (a *agent) back(name string) {
	a.mu.Lock()
	was := a.trouble
	a.trouble = ""
	a.mu.Unlock()
	if was != "" {
		fmt.Printf("redlock: middleware %s: the agent at %s takes locks again\n", name, a.address) // Traefik logs standard error as errors
	}
}

var errSilent = errors.New("it does not answer")

func isSilence(err error) bool {
	return err == errSilent || errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, context.DeadlineExceeded)
}

// enter returns an error if the agent is known to hang, so that requests don't wait for it one after the other. One request each askAgain asks it.
func (a *agent) enter(ask func() error) error {
	a.mu.Lock()
	if !a.hangs || a.asking && a.asked.IsZero() {
		a.mu.Unlock()
		return nil
	}
	if a.asking || time.Since(a.asked) < askAgain {
		a.mu.Unlock()
		return errSilent
	}
	a.asking = true
	a.mu.Unlock()
	hangs := true
	defer func() { // also after a panic, or nobody would ask any more
		a.mu.Lock()
		a.asking = false
		a.asked = time.Now()
		a.hangs = hangs
		a.mu.Unlock()
	}()
	hangs = isSilence(ask())
	if hangs {
		return errSilent
	}
	return nil
}
