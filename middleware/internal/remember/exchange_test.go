package remember_test

import (
	"errors"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/middleware/internal/remember"
)

func policy(t *testing.T, s remember.Settings) *remember.Policy {
	t.Helper()
	s.Keep, s.Size, s.MaxResult = 24*time.Hour, mostBytes, 1<<20
	if s.Quota == 0 {
		s.Quota = 1 << 30
	}
	p, err := s.Compile()
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// answer has an Exchange record a response, and returns what is decided about it.
func answer(t *testing.T, e *remember.Exchange, status int, body string) remember.Decision {
	t.Helper()
	h := make(http.Header)
	recorder := e.Record(t.Context(), h)
	recorder.Begin(status, h)
	recorder.Write([]byte(body))
	defer e.Close()
	return e.Conclude(http.MethodPost, h)
}

func TestExchange(t *testing.T) {
	t.Parallel()
	request := func(id string) remember.Request {
		return remember.Request{Key: storedUnder, Fingerprint: remember.FingerprintOf([]byte(id), "POST", "/"), Client: "192.0.2.1"}
	}
	p := policy(t, remember.Settings{Sealer: newSealer(t, newKey())})
	stored := answer(t, p.Begin(request("a")), http.StatusCreated, "paid")
	if stored.Result == nil || stored.Keep != 24*time.Hour || stored.Why != "" || stored.Usage == nil || stored.Usage.Refusals {
		t.Fatalf("decided: %+v", stored)
	}
	uncompared := request("")
	uncompared.Fingerprint = remember.Fingerprint{}
	for _, r := range []remember.Request{request("a"), uncompared} {
		e := p.Begin(r)
		if got, err := e.Recall(stored.Result); err != nil || got.Status != http.StatusCreated || string(got.Body) != "paid" {
			t.Errorf("recalled: %+v, %v", got, err)
		}
		e.Close()
	}
	other := p.Begin(request("b"))
	defer other.Close()
	if _, err := other.Recall(stored.Result); err != remember.ErrMismatch {
		t.Errorf("another request: %v", err)
	}
	plain := answer(t, policy(t, remember.Settings{}).Begin(request("a")), http.StatusOK, "from before there were keys")
	e := p.Begin(request("a"))
	defer e.Close()
	if _, err := e.Recall(plain.Result); err != nil {
		t.Error(err)
	}
	if _, err := e.Recall(stored.Result[:len(stored.Result)-1]); !errors.Is(err, remember.ErrUnreadable) {
		t.Errorf("damaged: %v", err)
	}
}

func TestDecisions(t *testing.T) {
	t.Parallel()
	for status, want := range map[int]remember.Decision{
		http.StatusOK:                  {Keep: 24 * time.Hour},
		http.StatusNotFound:            {Keep: time.Hour},
		http.StatusConflict:            {Why: remember.NotFinal},
		http.StatusInternalServerError: {Why: remember.NotFinal},
	} {
		d := answer(t, policy(t, remember.Settings{}).Begin(remember.Request{}), status, "")
		if d.Keep != want.Keep || d.Why != want.Why || (d.Result == nil) != (want.Why != "") {
			t.Errorf("%d: %+v", status, d)
		}
	}
	p := policy(t, remember.Settings{Statuses: []string{"2xx"}, Quota: 1000})
	if d := answer(t, p.Begin(remember.Request{}), http.StatusSeeOther, ""); d.Why != remember.NotFinal {
		t.Errorf("no 2xx: %+v", d)
	}
	for i, want := range []string{"", remember.OverQuota} {
		if d := answer(t, p.Begin(remember.Request{}), http.StatusOK, ""); d.Why != want || d.Usage == nil || d.Usage.Size != 875 {
			t.Errorf("response %d: %+v", i, d)
		}
	}
	if d := answer(t, policy(t, remember.Settings{}).Begin(remember.Request{}), http.StatusOK, string(make([]byte, mostBytes+1))); d.Why != remember.TooLarge || d.Result == nil {
		t.Errorf("too large: %+v", d)
	}
}

func TestSettings(t *testing.T) {
	t.Parallel()
	valid := remember.Settings{Keep: time.Hour, Size: 1, Quota: 1, MaxResult: 1 << 20}
	for want, change := range map[string]func(*remember.Settings){
		"remember 1ms: must be at least 1s":                                        func(s *remember.Settings) { s.Keep = time.Millisecond },
		"remember_size 1048576: must be from 1 to 983040 bytes":                    func(s *remember.Settings) { s.Size = 1 << 20 },
		"remember_quota -1: must be from 1 to 2147483647 bytes":                    func(s *remember.Settings) { s.Quota = -1 },
		`remember_status "5xx": want a status from 200 to 499, or 2xx, 3xx or 4xx`: func(s *remember.Settings) { s.Statuses = []string{"5xx"} },
		"remember_status: want at least one status, such as 2xx":                   func(s *remember.Settings) { s.Statuses = []string{} },
	} {
		s := valid
		change(&s)
		if _, err := s.Compile(); fmt.Sprint(err) != want {
			t.Errorf("%v, want %s", err, want)
		}
	}
	if p, err := (remember.Settings{MaxResult: 1 << 20}).Compile(); p != nil || err != nil {
		t.Errorf("without remember: %v, %v", p, err)
	}
}
