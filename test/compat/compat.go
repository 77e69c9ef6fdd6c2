// Package compat tests that processes of two versions share their locks, on the same masters: a process takes and frees locks as
// the test tells it. This file is also compiled in the sources of the former version, so it uses only what that version has.
package compat

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/caddy-redlock/caddy-redlock/internal/base/inside"
	"github.com/caddy-redlock/caddy-redlock/middleware"
	"github.com/caddy-redlock/caddy-redlock/redlock"
)

// Settings are those of a process.
type Settings struct {
	Masters []string
	Name    string
	TTL     time.Duration // also the max TTL
}

// Request is one line of the process's input.
type Request struct {
	ID      int
	Do      string // lock, unlock, lost, inspect, force or pay
	Key     string
	Wait    time.Duration // lock: for at most this long, if it isn't 0
	Recall  bool          // lock: fails if there is a result
	Lock    int           // unlock, lost: the ID of the request that has taken the lock
	Result  string        // unlock: is remembered, if it isn't empty
	Body    string        // pay: of the request, whose Idempotency-Key is Key
	Fencing uint64        // force: the fencing token
}

// Answer is one line of the process's output.
type Answer struct {
	ID        int
	Error     string // of lock, unlock, inspect and force; why the lock was lost
	NoQuorum  bool   // what the error is
	Forced    bool
	Done      bool
	Fence     uint64 // lock
	Woken     bool   // lock: by a master, when the lock became free
	Result    string // lock: that was recalled; pay: the Location and the body of the response
	Replayed  bool   // pay: it is a remembered one
	Status    int    // pay
	Inspected *Inspected
}

// Inspected is what a process sees of a key.
type Inspected struct {
	Held    bool
	Fence   uint64
	Holder  string
	TTL     time.Duration
	Masters []struct{ Queue []struct{ Process string } }
}

// Work does what the input says, until it ends. The locks that the process then has stay on the masters.
func Work(config string, input io.Reader, output io.Writer) error {
	var s Settings
	if err := json.Unmarshal([]byte(config), &s); err != nil {
		return err
	}
	locker, err := redlock.Open(s.Masters, redlock.WithTTL(s.TTL), redlock.WithMaxTTL(s.TTL), redlock.WithInstance(s.Name),
		redlock.WithTimeout(min(2*time.Second, s.TTL/3)), redlock.WithRestartGuard(0),
		redlock.WithLogger(slog.New(slog.NewTextHandler(os.Stderr, nil))))
	if err != nil {
		return err
	}
	w := &worker{locker: locker, answers: json.NewEncoder(output), locks: make(map[int]*redlock.Lock)}
	w.shop = middleware.New(locker, "customer:{header.Customer}", middleware.Rule{IdempotencyKey: "required", Remember: time.Minute})(
		http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Location", "/receipts/"+s.Name)
			w.WriteHeader(http.StatusCreated)
			_, _ = io.WriteString(w, strings.Repeat("paid to "+s.Name+"\n", 100))
		}))
	for requests := json.NewDecoder(input); ; {
		var r Request
		if err := requests.Decode(&r); err != nil {
			return nil // the test has ended
		}
		go w.answer(r)
	}
}

type worker struct {
	locker *redlock.Locker
	shop   http.Handler

	mu      sync.Mutex
	answers *json.Encoder
	locks   map[int]*redlock.Lock
}

func (w *worker) answer(r Request) {
	a := Answer{ID: r.ID}
	err := w.do(r, &a)
	if err != nil {
		a.Error, a.NoQuorum, a.Forced = err.Error(), errors.Is(err, redlock.ErrNoQuorum), errors.Is(err, redlock.ErrForced)
	}
	var done *redlock.DoneError
	if errors.As(err, &done) {
		a.Done, a.Result = true, string(done.Result)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.answers.Encode(a); err != nil {
		os.Exit(1) // the test has ended
	}
}

func (w *worker) do(r Request, a *Answer) (err error) {
	ctx := context.Background()
	w.mu.Lock()
	lock := w.locks[r.Lock]
	w.mu.Unlock()
	switch r.Do {
	case "lock":
		return w.lock(ctx, r, a)
	case "unlock":
		if r.Result != "" {
			return lock.UnlockWith([]byte(r.Result), time.Minute)
		}
		return lock.Unlock()
	case "lost":
		<-lock.Context().Done()
		return context.Cause(lock.Context())
	case "inspect":
		var seen any
		seen, err = inspectKey(ctx, w.locker, r.Key)
		text, _ := json.Marshal(seen)
		_ = json.Unmarshal(text, &a.Inspected)
	case "force":
		err = force(ctx, w.locker, r.Key, r.Fencing)
	case "pay":
		w.pay(r, a)
	}
	return err
}

func (w *worker) pay(r Request, a *Answer) {
	request := httptest.NewRequest(http.MethodPost, "/pay?now", strings.NewReader(r.Body))
	request.Header.Set("Customer", "7")
	request.Header.Set(middleware.IdempotencyHeader, r.Key)
	response := httptest.NewRecorder()
	w.shop.ServeHTTP(response, request)
	a.Status, a.Replayed = response.Code, response.Header().Get("Idempotency-Replayed") != ""
	a.Result = response.Header().Get("Location") + "\n" + response.Body.String()
}

func (w *worker) lock(ctx context.Context, r Request, a *Answer) error {
	var opts []redlock.LockOption
	if r.Wait > 0 {
		opts = append(opts, redlock.WithWait(r.Wait))
	}
	if r.Recall {
		opts = append(opts, redlock.WithRecall())
	}
	lock, err := w.locker.Lock(ctx, r.Key, opts...)
	if err != nil {
		return err
	}
	w.mu.Lock()
	w.locks[r.ID] = lock
	w.mu.Unlock()
	a.Fence, a.Woken = lock.Fence(), inside.AcquisitionOf(lock).Via == inside.ViaWoken
	return nil
}
