package e2e

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/internal/tests/redistest"
)

const paymentTTL = 2 * calm

// paying is a test in which clients repeat their payments while processes and masters fail.
type paying struct {
	t       *testing.T
	bank    *bank
	servers []*redistest.Server
	rule    string       // its lines
	charges string       // the key of charges, if it is not their ID
	client  *http.Client // it sends a request once: Go's own repeats would be indistinguishable from the first

	branches [3]atomic.Pointer[branch] // two Caddys, and perhaps a net/http server
	hosts    int                       // that there are
	started  []*branch                 // all that there have been

	tries, settled atomic.Int64

	mu  sync.Mutex
	got map[string][]received // by payment
}

// branch is a Caddy that may be killed, or a net/http server.
type branch struct {
	*caddyProcess
	name   string
	killed bool
}

func newPaying(t *testing.T, servers []*redistest.Server, rule, charges string) *paying {
	p := &paying{t: t, bank: newBank(t), servers: servers, rule: rule, charges: charges, got: make(map[string][]received),
		hosts: 2, client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 100}, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}}
	t.Cleanup(p.client.CloseIdleConnections)
	for i := range p.hosts {
		p.start(i)
	}
	return p
}

// config has two rules: payments wait for others of their account, and charges by default only for those with their ID.
func (p *paying) config(name string, lines ...string) string {
	option := "debug\n" // a line for each response that is not remembered
	if p.servers != nil {
		option += mastersOption(p.servers, "timeout "+calm.String(), "max_ttl "+paymentTTL.String())
	}
	rule := "ttl " + paymentTTL.String() + "\n" + p.rule
	return caddyfile(option, "log\n"+strings.Join(lines, "\n")+`
		redlock /payments account:{header.Account} {
			wait 1m
			`+rule+`
		}
		redlock /charges `+p.charges+` {
			`+rule+`
		}
		`+p.bank.proxy(name))
}

func (p *paying) start(i int) {
	p.t.Helper()
	name := fmt.Sprintf("%c%d", 'a'+i, len(p.started))
	b := &branch{caddyProcess: runCaddy(p.t, p.config(name)), name: name}
	p.started = append(p.started, b)
	p.branches[i].Store(b)
}

// kill kills a Caddy, and starts another one in its place.
func (p *paying) kill(i int) {
	p.t.Helper()
	b := p.branches[i].Load()
	b.killed = true
	_ = b.cmd.Process.Kill()
	<-b.exited
	p.start(i)
}

func (p *paying) reload(i int) {
	p.t.Helper()
	b := p.branches[i].Load()
	if a := b.load(p.t, p.config(b.name, "header Reload "+fmt.Sprint(p.tries.Load()))); a.status != http.StatusOK {
		p.t.Fatalf("reload: %d %s", a.status, a.body)
	}
}

// payment is what a client asks for, as often as it likes.
type payment struct{ who, key, path, account, body string }

func paymentNumber(i int) *payment {
	return &payment{
		who:     []string{"Bearer alice", "Bearer bob"}[i%2],
		key:     fmt.Sprintf(`"payment-%d"`, i/2), // both use the same keys
		path:    []string{"/payments", "/charges"}[i/2%2],
		account: fmt.Sprint(i % 40),
		body:    fmt.Sprintf(`{"amount":%d}`, i),
	}
}

func (m *payment) name() string { return m.who + " pays " + strings.Trim(m.key, `"`) }

// settle asks for a payment, and repeats that up to five times, at once or late.
func (p *paying) settle(m *payment) {
	var all sync.WaitGroup
	all.Go(func() { p.pay(m) })
	for range rand.IntN(6) {
		late := time.Duration(0)
		if rand.IntN(2) == 0 {
			late = rand.N(time.Second)
		}
		all.Go(func() {
			time.Sleep(late)
			p.pay(m)
		})
	}
	all.Wait()
	p.settled.Add(1)
}

// pay asks either Caddy for a payment until there is a response to it.
func (p *paying) pay(m *payment) received {
	for deadline := time.Now().Add(10 * bound); p.t.Context().Err() == nil; time.Sleep(20*time.Millisecond + rand.N(200*time.Millisecond)) {
		a, refused := p.try(m)
		switch a.status {
		case 0, http.StatusConflict, http.StatusLocked, http.StatusInternalServerError, http.StatusBadGateway, http.StatusServiceUnavailable:
		default:
			p.mu.Lock()
			p.got[m.name()] = append(p.got[m.name()], a)
			p.mu.Unlock()
			return a
		}
		if time.Now().After(deadline) {
			p.t.Errorf("%s: no response, but at last %s", m.name(), refused)
			break
		}
	}
	return received{}
}

// try sends a request once, to one of the hosts, and may leave before it is answered, or in the middle of the response. Without a complete response the
// status is 0.
func (p *paying) try(m *payment) (a received, refused string) {
	ctx := p.t.Context()
	if rand.IntN(6) == 0 {
		timeout, cancel := context.WithTimeout(ctx, rand.N(100*time.Millisecond))
		defer cancel()
		ctx = timeout
	}
	r := withBody(p.branches[rand.IntN(p.hosts)].Load().url+m.path, m.body, "Idempotency-Key", m.key, "Authorization", m.who, "Account", m.account,
		"Test-Try", fmt.Sprint(p.tries.Add(1)))
	r.Host = "127.0.0.1" // that of both, as behind a load balancer
	response, err := p.client.Do(r.WithContext(ctx))
	if err != nil {
		return received{}, err.Error()
	}
	defer response.Body.Close()
	if rand.IntN(20) == 0 {
		_, _ = response.Body.Read(make([]byte, 1))
		return received{}, "left"
	}
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return received{}, err.Error()
	}
	return received{status: response.StatusCode, header: response.Header, body: string(body)}, fmt.Sprintf("%d %s", response.StatusCode, response.Header.Get("Redlock-Outcome"))
}

// payAll has all payments settled, many at once, and does the other things in the meantime, one after the other: each when its share of the payments is settled.
func (p *paying) payAll(payments int, meanwhile ...func()) {
	p.t.Helper()
	next := make(chan *payment, payments)
	for i := range payments {
		next <- paymentNumber(i)
	}
	close(next)
	var all sync.WaitGroup
	p.t.Cleanup(all.Wait)
	for range 40 {
		all.Go(func() {
			for m := range next {
				p.settle(m)
			}
		})
	}
	for i, step := range meanwhile {
		for p.settled.Load() < int64(payments*(i+1)/(len(meanwhile)+1)) {
			time.Sleep(5 * time.Millisecond)
		}
		step()
	}
	all.Wait()
}
