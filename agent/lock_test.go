package agent_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/agent"
	"github.com/caddy-redlock/caddy-redlock/internal/base/lockname"
	"github.com/caddy-redlock/caddy-redlock/internal/tests/redistest"
	"github.com/caddy-redlock/caddy-redlock/redlock"
	"github.com/caddy-redlock/caddy-redlock/redlock/inspect"
	"github.com/caddy-redlock/caddy-redlock/redlock/simnet"
)

// TestHoldEnds ends holds in each way that a client has, over both kinds of sockets: the key is free at once.
func TestHoldEnds(t *testing.T) {
	for _, network := range []string{"unix", "tcp"} {
		t.Run(network, func(t *testing.T) {
			locker := newLocker(t, live)
			client := serve(t, network, agent.New(locker))
			for name, end := range map[string]func(key string){
				"end of the body": func(key string) {
					h := post(t, client, "/v1/lock", `{"key":"`+key+`"}`)
					h.first()
					requireHeld(t, locker, key)
					if last := h.end(); last.Released == nil || !*last.Released {
						t.Errorf("last line %+v, want released", last)
					}
				},
				"closed, with an open body": func(key string) {
					h := post(t, client, "/v1/lock", `{"key":"`+key+`"}`)
					h.first()
					requireHeld(t, locker, key)
					h.close()
				},
				"closed, with a whole body": func(key string) {
					h := postWhole(t, client, "/v1/lock", `{"key":"`+key+`"}`)
					h.first()
					requireHeld(t, locker, key)
					h.close()
				},
			} {
				key := strings.ReplaceAll(name, " ", "-")
				end(key)
				requireFree(t, locker, key)
			}
		})
	}
}

// TestFences takes a key several times over one connection.
func TestFences(t *testing.T) {
	locker := newLocker(t, live)
	client := serve(t, "unix", agent.New(locker))
	last := uint64(0)
	for range 5 {
		h := post(t, client, "/v1/lock", `{"keys":["a","b"]}`)
		first := h.first()
		if first.Fence <= last {
			t.Errorf("fence %d after %d", first.Fence, last)
		}
		last = first.Fence
		h.end()
	}
}

// TestMarks checks what the lines promise: the lease from the mark that they name, which the client has sent before, and never more.
func TestMarks(t *testing.T) {
	const ttl, waited = 9 * time.Second, 3 * time.Second
	inBubble(t, func(t *testing.T, _ *simnet.Net, locker *redlock.Locker, client *http.Client) {
		before, err := locker.TryLock(t.Context(), "k")
		if err != nil {
			t.Fatal(err)
		}
		time.AfterFunc(waited, func() { _ = before.Unlock() })
		sent := []time.Time{time.Now()}
		h := post(t, client, "/v1/lock", `{"key":"k","ttl":"9s"}`)
		// The Locker has the masters keep a lease for a little longer than it relies on it, and renews it when a third is over.
		check := func(l line, mark int64, least time.Duration) {
			t.Helper()
			left := time.Until(sent[mark].Add(time.Duration(l.ValidMS) * time.Millisecond))
			if l.Mark != mark || left > ttl || left < least {
				t.Errorf("line %+v promises %v from now on, want from %v to %v, by mark %d", l, left, least, ttl, mark)
			}
		}
		check(h.first(), 0, ttl*9/10)
		for mark := int64(1); mark <= 3; mark++ {
			time.Sleep(time.Second)
			sent = append(sent, time.Now())
			h.mark()
			check(h.answer(mark), mark, ttl/2)
		}
		for range 2 { // renewals, unasked
			l, err := h.next()
			if err != nil {
				t.Fatal(err)
			}
			check(l, 3, ttl*9/10)
		}
		h.end()
		requireFree(t, locker, "k")
	})
}

func TestRefusals(t *testing.T) {
	locker := newLocker(t, live)
	client := serve(t, "unix", agent.New(locker))
	h := post(t, client, "/v1/lock", `{"key":"held"}`)
	h.first()
	for body, want := range map[string]struct {
		status int
		text   string
	}{
		`{"key":"held","try":true}`:        {423, `"type":"https://github.com/caddy-redlock/caddy-redlock/blob/main/docs/problems.md#held"`},
		`{"key":"held","wait":"0s"}`:       {423, "held"},
		`{"key":"held","wait":"10ms"}`:     {423, "for the whole wait"},
		`{"keys":["x","held"],"try":true}`: {423, "held"},
		`{}`:                               {400, "key"},
		``:                                 {400, "empty"},
		`{"key":"a","keys":["b"]}`:         {400, "one of them"},
		`{"key":"a","color":1}`:            {400, "color"},
		`{"key":"held","wait":0}`:          {423, "held"},
		`{"key":"a","wait":"soon"}`:        {400, "soon"},
		`{"key":"a","wait":5}`:             {400, `\"5s\"`},
		`{"key":"a","max_hold":60}`:        {400, `60: want a duration with its unit`},
		`{"key":"a","ttl":5000000000}`:     {400, "unit"},
		`{"key":"a","ttl":"1h"}`:           {400, "max ttl"},
		`{"key":"a"} {"key":"b"}`:          {400, "after"},
		`{"key":"a","heartbeat":"1s"}`:     {400, "heartbeat"},
		"{\"key\":\"a\xff\"}":              {400, "UTF-8"},
		`{"keys":["b","\ud800"]}`:          {400, "UTF-8"},
		`{"key":"{id}","try":true,"values":{"id":"ＨＥＬＤ"}}`:                {423, "held"},
		`{"keys":["{a}","{b}"],"try":true,"values":{"a":"1","b":"Held"}}`: {423, "held"},
		`{"key":"{id:int}","values":{"id":"042"}}`:                        {400, "key part {id:int}: not a whole number"},
		`{"key":"{id}","values":{"di":"42"}}`:                             {400, `no placeholder reads the value \"di\"`},
		`{"key":"{id","values":{}}`:                                       {400, "is not closed"},
		`{"key":"{id}","values":{"id":42}}`:                               {400, "want a text"},
		`{"key":"{id}","values":{"id":"\ud800"}}`:                         {400, "UTF-8"},
		`{"key":"` + strings.Repeat("a", 70000) + `"}`:                    {431, "too long"},
	} {
		h := postWhole(t, client, "/v1/lock", body)
		text, _ := io.ReadAll(h.response.Body)
		name := body[:min(len(body), 40)]
		if h.response.StatusCode != want.status || !strings.Contains(string(text), want.text) {
			t.Errorf("%s: %d %s, want %d and %q", name, h.response.StatusCode, text, want.status, want.text)
		}
		if got := h.response.Header.Get("Content-Type"); got != "application/problem+json" {
			t.Errorf("%s: Content-Type %q", name, got)
		}
		if want.status == 423 && h.response.Header.Get("Retry-After") == "" {
			t.Errorf("%s: no Retry-After", name)
		}
		h.close()
	}
}

// TestWaitEnds ends waits: the client leaves, ends its body, or the agent stops.
func TestWaitEnds(t *testing.T) {
	locker := newLocker(t, live)
	client := serve(t, "unix", agent.New(locker))
	lock, err := locker.TryLock(t.Context(), "k")
	if err != nil {
		t.Fatal(err)
	}
	r, w := io.Pipe()
	answered := make(chan int, 1)
	go func() {
		response, err := client.Post("http://redlock/v1/lock", "application/json", io.MultiReader(strings.NewReader("{\"key\":\"k\"}\n"), r))
		if err != nil {
			answered <- 0
			return
		}
		_ = response.Body.Close()
		answered <- response.StatusCode
	}()
	for locker.Status().Waiting == 0 {
		time.Sleep(time.Millisecond)
	}
	_ = w.Close()
	<-answered
	for locker.Status().Waiting > 0 {
		time.Sleep(time.Millisecond)
	}
	if err := lock.Unlock(); err != nil {
		t.Error(err)
	}
	requireFree(t, locker, "k")
}

// TestLoss checks the last line of a lock that is lost.
func TestLoss(t *testing.T) {
	locker := newLocker(t, live)
	client := serve(t, "unix", agent.New(locker))
	for want, body := range map[string]string{"max_hold": `{"key":"k","max_hold":"50ms"}`, "heartbeat": `{"key":"k","ttl":"2s","heartbeat":"1ms"}`} {
		h := post(t, client, "/v1/lock", body)
		h.first()
		var l line
		for l.Lost == "" {
			var err error
			if l, err = h.next(); err != nil {
				t.Fatal(err)
			}
		}
		if l.Lost != want {
			t.Errorf("lost %q, want %q", l.Lost, want)
		}
		requireFree(t, locker, "k")
		h.close()
	}
	h := post(t, client, "/v1/lock", `{"key":"k"}`)
	if err := inspect.Force(t.Context(), locker, "k", 0, h.first().Fence); err != nil {
		t.Fatal(err)
	}
	for {
		l, err := h.next()
		if err != nil {
			t.Fatal(err)
		}
		if l.Lost == "forced" {
			break
		}
	}
}

// TestHeartbeatBeginsWithTheHold: a client that waits sends no marks, however long its wait.
func TestHeartbeatBeginsWithTheHold(t *testing.T) {
	inBubble(t, func(t *testing.T, _ *simnet.Net, locker *redlock.Locker, client *http.Client) {
		former, err := locker.Lock(t.Context(), "k")
		if err != nil {
			t.Fatal(err)
		}
		time.AfterFunc(25*time.Second, func() { _ = former.Unlock() })
		h := post(t, client, "/v1/lock", `{"key":"k","wait":"30s","heartbeat":"10s"}`)
		h.first()
		time.Sleep(9 * time.Second)
		h.mark()
		h.answer(1)
		h.end()
		requireFree(t, locker, "k")
	})
}

// TestLapses: a client that is given up, as it sends no marks, or whose child may outlive it, may rely on what it was promised.
func TestLapses(t *testing.T) {
	locker := newLocker(t, live)
	client := serve(t, "unix", agent.New(locker))
	for _, field := range []string{`"heartbeat":"1ms"`, `"linger":true`} {
		sent := time.Now()
		w := dialWire(t, client) // a client of net/http closes its connection when the response has ended
		w.send("/v1/lock", `{"key":"k","ttl":"2s",`+field+"}\n")
		var first line
		if err := json.NewDecoder(w.response().Body).Decode(&first); err != nil {
			t.Fatal(err)
		}
		promised := sent.Add(time.Duration(first.ValidMS) * time.Millisecond)
		if field == `"linger":true` {
			_ = w.Close()
		}
		lock, err := locker.Lock(t.Context(), "k", redlock.WithWait(bound))
		if now := time.Now(); err != nil || now.Before(promised) {
			t.Fatalf("%s: the key was free %v before the end that the client was promised, or never: %v", field, promised.Sub(now), err)
		}
		_ = lock.Unlock()
	}
}

func TestWhoMayAsk(t *testing.T) {
	locker := newLocker(t, live)
	const body = `{"key":"k","try":true}`
	open := serve(t, "unix", agent.New(locker))
	secret := serve(t, "tcp", agent.New(locker, agent.WithToken("secret"), agent.WithHosts("agent.internal")))
	for name, c := range map[string]struct {
		client *http.Client
		host   string
		header map[string]string
		status int
	}{
		"curl":            {open, "", map[string]string{"Content-Type": "application/x-www-form-urlencoded"}, 200},
		"no type":         {open, "", nil, 200},
		"address":         {open, "127.0.0.1:80", nil, 200},
		"IPv6":            {open, "[::1]:80", nil, 200},
		"rebinding":       {open, "evil.example", nil, 403},
		"origin":          {open, "", map[string]string{"Origin": "http://redlock"}, 403},
		"browser":         {open, "", map[string]string{"Sec-Fetch-Site": "same-origin"}, 403},
		"text":            {open, "", map[string]string{"Content-Type": "text/plain"}, 415},
		"this version":    {open, "", map[string]string{"Redlock-Agent": "1"}, 200},
		"another version": {open, "", map[string]string{"Redlock-Agent": "2"}, 426},
		"no token":        {secret, "", nil, 401},
		"wrong token":     {secret, "", map[string]string{"Authorization": "Bearer secret2"}, 401},
		"other scheme":    {secret, "", map[string]string{"Authorization": "Basic secret"}, 401},
		"token":           {secret, "agent.internal", map[string]string{"Authorization": "Bearer secret"}, 200},
		"form over TCP":   {secret, "", map[string]string{"Authorization": "Bearer secret", "Content-Type": "application/x-www-form-urlencoded"}, 415},
	} {
		r, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://redlock/v1/lock", strings.NewReader(body))
		r.Host = c.host
		for name, value := range c.header {
			r.Header.Set(name, value)
		}
		response, err := c.client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		if response.StatusCode != c.status || response.Header.Get("Redlock-Agent") != "1" {
			t.Errorf("%s: %d, version %q; want %d", name, response.StatusCode, response.Header.Get("Redlock-Agent"), c.status)
		}
		_ = response.Body.Close()
		requireFree(t, locker, "k")
	}
}

// TestRefusedWithOpenBody: a client that keeps its body open is told why it is refused before it asks for anything.
func TestRefusedWithOpenBody(t *testing.T) {
	client := serve(t, "tcp", agent.New(newLocker(t, live), agent.WithToken("secret")))
	for _, path := range []string{"/v1/lock", "/v1/turn", "/v1/other"} {
		h := post(t, client, path, `{"key":"k"}`)
		if h.response.StatusCode != http.StatusUnauthorized {
			t.Errorf("%s: %d", path, h.response.StatusCode)
		}
		h.close()
	}
}

// TestOncePer: work that is done isn't done again in its period; work that isn't, is.
func TestOncePer(t *testing.T) {
	locker := newLocker(t, live)
	client := serve(t, "unix", agent.New(locker))
	const body = `{"key":"k","once_per":"1h"}`
	for _, end := range []string{"", "failed", "\n", "done?", "done\nfailed"} { // of those who have not succeeded
		h := post(t, client, "/v1/lock", body)
		h.first()
		_, _ = io.WriteString(h.body, end)
		h.end()
	}
	h := post(t, client, "/v1/lock", body)
	h.first()
	waiter := make(chan *held)
	go func() { waiter <- post(t, client, "/v1/lock", body) }()
	h.mark()
	_, _ = io.WriteString(h.body, "do")
	_, _ = io.WriteString(h.body, "ne\n\n")
	if last := h.end(); last.Released == nil || !*last.Released {
		t.Errorf("last line %+v", last)
	}
	for _, late := range []*held{<-waiter, post(t, client, "/v1/lock", body)} {
		if got := late.response; got.StatusCode != http.StatusConflict || got.Header.Get("Redlock-Outcome") != "done" || got.Header.Get("Redlock-Agent-Error") != "" {
			t.Errorf("after the work was done: %s, %v", got.Status, got.Header)
		}
		late.close()
	}
	requireFree(t, locker, "k") // for who doesn't ask whether it is done
	for _, wrong := range []string{`{"key":"k","once_per":"1ms"}`, `{"key":"k","once_per":"0s"}`, `{"keys":["k","l"],"once_per":"1h"}`} {
		if h := post(t, client, "/v1/lock", wrong); h.response.StatusCode != http.StatusBadRequest {
			t.Errorf("%s: %s", wrong, h.response.Status)
		}
	}
}

// TestDoneInPeriod: who comes after the work of a period is told when it was done, and when it may be done again.
func TestDoneInPeriod(t *testing.T) {
	inBubble(t, func(t *testing.T, _ *simnet.Net, _ *redlock.Locker, client *http.Client) {
		const body = `{"key":"k","once_per":"1h","quiet":true}`
		h := post(t, client, "/v1/lock", body)
		h.first()
		time.Sleep(10 * time.Minute)
		_, _ = io.WriteString(h.body, "done")
		h.end()
		time.Sleep(14 * time.Minute)
		late := post(t, client, "/v1/lock", body)
		text, _ := io.ReadAll(late.response.Body)
		want := `"detail":"it was done in this period, 14m0s ago, and may be done again in 30m0s","retry_after":1800}`
		if got := late.response; !strings.HasSuffix(strings.TrimSpace(string(text)), want) || got.Header.Get("Retry-After") != "1800" {
			t.Errorf("after the work was done: %v, %s, want %s", got.Header, text, want)
		}
	})
}

// TestPeriodBoundsWait: who asks once per period waits for the holder for no longer than the period.
func TestPeriodBoundsWait(t *testing.T) {
	inBubble(t, func(t *testing.T, _ *simnet.Net, locker *redlock.Locker, client *http.Client) {
		busy, err := locker.TryLock(t.Context(), "k")
		if err != nil {
			t.Fatal(err)
		}
		defer time.AfterFunc(time.Minute, func() { _ = busy.Unlock() }).Stop()
		began := time.Now()
		h := post(t, client, "/v1/lock", `{"key":"k","once_per":"5s"}`)
		if waited := time.Since(began); h.response.StatusCode != http.StatusLocked || waited < 5*time.Second || waited > 6*time.Second {
			t.Errorf("status %d after %v, want 423 after 5s", h.response.StatusCode, waited)
		}
		_ = busy.Unlock()
	})
}

// TestOnce: the result that follows the word done is the answer to whoever asks for the same work, however long it is.
func TestOnce(t *testing.T) {
	locker := newLocker(t, live)
	client := serve(t, "unix", agent.New(locker))
	for _, result := range []string{`{"paid":1}`, "", strings.Repeat("x", 60<<10)} {
		key := fmt.Sprint("k", len(result))
		body := `{"key":"` + key + `","once":"1h"}`
		h := post(t, client, "/v1/lock", body)
		h.first()
		_, _ = io.WriteString(h.body, "\ndone "+result+"\n\n")
		if last := h.end(); last.Released == nil || !*last.Released {
			t.Errorf("last line %+v", last)
		}
		late := post(t, client, "/v1/lock", body)
		var problem struct{ Result *string }
		err := json.NewDecoder(late.response.Body).Decode(&problem)
		if got := late.response; err != nil || got.StatusCode != http.StatusConflict || got.Header.Get("Redlock-Outcome") != "done" || problem.Result == nil || *problem.Result != result {
			t.Errorf("after the work was done: %s, %v, %v", got.Status, got.Header, err)
		}
		late.close()
	}
	h := post(t, client, "/v1/lock", `{"key":"k","once":"1h"}`)
	h.first()
	_, _ = io.WriteString(h.body, "done "+strings.Repeat("x", 65<<10))
	if last := h.end(); last.Released == nil || !*last.Released || !last.Forgotten {
		t.Errorf("a result that is too long: last line %+v, want released, and forgotten", last)
	}
	for _, wrong := range []string{`{"key":"k","once":"1h","once_per":"1h"}`, `{"keys":["k","l"],"once":"1h"}`, `{"key":"k","once":"-1s"}`, `{"key":"k","once":"1us"}`, `{"key":"k","once":"0s"}`} {
		if h := post(t, client, "/v1/lock", wrong); h.response.StatusCode != http.StatusBadRequest {
			t.Errorf("%s: %s", wrong, h.response.Status)
		}
	}
}

// TestUnconfirmed: a lock whose release no quorum confirms was not lost, and its work is not said to be remembered.
func TestUnconfirmed(t *testing.T) {
	inBubble(t, func(t *testing.T, net *simnet.Net, _ *redlock.Locker, client *http.Client) {
		for _, end := range []string{"", "done"} {
			h := post(t, client, "/v1/lock", `{"key":"k`+end+`","once_per":"1h"}`)
			h.first()
			for _, s := range net.Servers[1:] {
				s.Hang()
			}
			_, _ = io.WriteString(h.body, end)
			if last := h.end(); last.Released == nil || !*last.Released || !last.Unconfirmed || last.Forgotten != (end == "done") {
				t.Errorf("%q: last line %+v, want released and unconfirmed, and forgotten if the work was done", end, last)
			}
			for _, s := range net.Servers[1:] {
				s.Resume()
			}
		}
	})
}

// TestLossFoundAtRelease: a lock of which only the release finds that it was lost is told to the client, and to the agent's log.
func TestLossFoundAtRelease(t *testing.T) {
	server := redistest.Start(t, 1)[0]
	var log bytes.Buffer // read when the Locker is closed
	logger := slog.New(slog.NewTextHandler(&log, nil))
	locker := newLocker(t, []string{server.URL()}, redlock.WithTimeout(bound), redlock.WithLogger(logger))
	client := serve(t, "unix", agent.New(locker))
	h := post(t, client, "/v1/lock", `{"key":"k"}`)
	fence := h.first().Fence
	if deleted, err := server.Client().Del(t.Context(), "redlock:{k}").Result(); err != nil || deleted != 1 {
		t.Fatalf("%d keys deleted: %v", deleted, err)
	}
	if last := h.end(); last.Released == nil || *last.Released || last.Detail == "" {
		t.Errorf("last line %+v, want that it isn't released, and why", last)
	}
	if err := locker.Close(); err != nil {
		t.Error(err)
	}
	lost := 0
	for line := range strings.Lines(log.String()) {
		if strings.Contains(line, "level=WARN") && strings.Contains(line, "lease lost") && strings.Contains(line, "key_hash="+lockname.Hash("k")) && strings.Contains(line, fmt.Sprint("fence=", fence)) {
			lost++
		}
	}
	if lost != 1 {
		t.Errorf("%d lines of the loss, want one, in\n%s", lost, &log)
	}
}

// TestPulse: a client that waits hears of the agent as often as it wants to.
func TestPulse(t *testing.T) {
	locker := newLocker(t, live)
	client := serve(t, "unix", agent.New(locker))
	busy, err := locker.Lock(t.Context(), "k")
	if err != nil {
		t.Fatal(err)
	}
	var once sync.Once
	pulses := 0
	ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{Got1xxResponse: func(code int, _ textproto.MIMEHeader) error {
		if pulses++; code == http.StatusProcessing && pulses > 2 {
			once.Do(func() { _ = busy.Unlock() })
		}
		return nil
	}})
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://redlock/v1/lock", strings.NewReader(`{"key":"k","pulse":"20ms"}`))
	if err != nil {
		t.Fatal(err)
	}
	response, err := client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	_ = response.Body.Close()
	if response.StatusCode != http.StatusOK {
		t.Errorf("status %d, want 200", response.StatusCode)
	}
}
