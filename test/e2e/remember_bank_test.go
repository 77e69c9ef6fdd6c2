package e2e

import (
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	mathrand "math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// bank is an upstream that makes a payment for each request that it gets, even if it has made the same one before: each run has a response of
// its own, with random bytes.
type bank struct {
	*httptest.Server

	mu   sync.Mutex
	runs map[string][]*bankRun // by payment, in the order in which they began
}

// bankRun is one time at which a payment was made.
type bankRun struct {
	caddy, try string // through which process the request came, and which of the client's tries it was
	begun      time.Time
	response   received
}

func newBank(t *testing.T) *bank {
	b := &bank{runs: make(map[string][]*bankRun)}
	b.Server = httptest.NewServer(b)
	t.Cleanup(b.Close)
	return b
}

// paymentOf returns what a request pays: the same for all that ask for the same payment, and different for two clients that use the same key.
func paymentOf(r *http.Request) string {
	return r.Header.Get("Authorization") + " pays " + strings.Trim(r.Header.Get("Idempotency-Key"), `"`)
}

func (b *bank) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	payment := paymentOf(r)
	noise := make([]byte, mathrand.IntN(4096))
	_, _ = rand.Read(noise)
	run := &bankRun{caddy: r.Header.Get("Test-Caddy"), try: r.Header.Get("Test-Try"), begun: time.Now(), response: received{
		status: []int{http.StatusOK, http.StatusCreated, http.StatusPaymentRequired, http.StatusSeeOther}[mathrand.IntN(4)],
		header: http.Header{"Location": {"/payments/" + rand.Text()}},
		body:   payment + "\n" + string(noise),
	}}
	b.mu.Lock()
	b.runs[payment] = append(b.runs[payment], run)
	b.mu.Unlock()
	work := mathrand.IntN(40)
	if mathrand.IntN(10) == 0 {
		work += 300
	}
	time.Sleep(time.Duration(work) * time.Millisecond)
	maps.Copy(w.Header(), run.response.header)
	w.Header().Set("Content-Length", fmt.Sprint(len(run.response.body)))
	w.WriteHeader(run.response.status)
	_, _ = io.WriteString(w, run.response.body)
}

// proxy passes requests on to the bank, with the name of the Caddy.
func (b *bank) proxy(caddy string) string {
	return "reverse_proxy " + b.Listener.Addr().String() + " {\nheader_up Test-Caddy " + caddy + "\n}\n"
}

// runsOf returns the runs of a payment.
func (b *bank) runsOf(payment string) []*bankRun {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.runs[payment])
}

// judge returns what is wrong with the responses that clients got for each payment, and why the runs before the last one of each were
// not remembered. A payment is made once, unless explain says why the response of a run was not stored; an empty text is no explanation. It is also told whether a client got that response.
func (b *bank) judge(got map[string][]received, explain func(run *bankRun, answered bool) string) (wrong []string, again map[*bankRun]string) {
	again = make(map[*bankRun]string)
	for payment, responses := range got {
		runs := b.runsOf(payment)
		last := len(runs) - 1
		if last < 0 {
			wrong = append(wrong, payment+" was never made")
			continue
		}
		for i, run := range runs[:last] {
			answered := slices.ContainsFunc(responses, func(a received) bool { return sameResponse(a, run.response) })
			if again[run] = explain(run, answered); again[run] == "" {
				wrong = append(wrong, fmt.Sprintf("%s: run %d of %d, by %s, try %s, begun %v, clients got its response: %v; the next began %v: it should be the last", payment, i+1, len(runs), run.caddy, run.try, run.begun.UTC(), answered, runs[i+1].begun.UTC()))
			}
		}
		for _, a := range responses {
			of := slices.IndexFunc(runs, func(run *bankRun) bool { return sameResponse(a, run.response) })
			if of < 0 {
				wrong = append(wrong, fmt.Sprintf("%s: the response of none of its %d runs: %d %v %.100q", payment, len(runs), a.status, a.header, a.body))
			}
		}
	}
	return wrong, again
}

func sameResponse(a, b received) bool {
	return a.status == b.status && slices.Equal(a.header["Location"], b.header["Location"]) && a.body == b.body
}

// ending is how a Caddy has ended a request: what became of its lock, and when.
type ending struct {
	outcome string
	at      time.Time
}

// endings returns how a Caddy has ended its requests, by the client's try, as its access log has it. One that isn't there was not ended when
// the process was killed.
func endings(log string) map[string]ending {
	all := make(map[string]ending)
	for line := range strings.Lines(log) {
		var entry struct {
			TS      float64
			Request struct{ Headers http.Header }
			Redlock struct{ Outcome string }
		}
		if strings.Contains(line, `"http.log.access`) && json.Unmarshal([]byte(line), &entry) == nil {
			all[entry.Request.Headers.Get("Test-Try")] = ending{entry.Redlock.Outcome, logged(entry.TS)}
		}
	}
	return all
}

func logged(seconds float64) time.Time { return time.UnixMicro(int64(seconds * 1e6)) }
