// Package agent is the lock for programs in any language: an HTTP server that holds a lock for a client until the client ends its request.
// docs/protocol.md describes the requests and responses. The command "redlock agent" serves them on a Unix socket, as the example does.
//
// POST /v1/lock takes the lock on keys. POST /v1/turn is for a gateway, such as Traefik with our plugin. The gateway describes a request that it has
// received. The agent checks the signature of that request, derives its keys and locks them, by the same rules as package middleware. POST /v1/rule
// checks the settings of such a rule.
package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/caddy-redlock/caddy-redlock/internal/base/inside"
	"github.com/caddy-redlock/caddy-redlock/middleware"
	"github.com/caddy-redlock/caddy-redlock/redlock"
)

// Agent gives locks of one Locker to its clients. New makes one.
type Agent struct {
	locker *redlock.Locker
	access access
	logger *slog.Logger
	budget *middleware.Budget // memory for the bodies in which the rules of gateways look for keys
	rules  rules
	locks  unruled      // the requests for /v1/lock
	turns  unruled      // those for /v1/turn that come to no rule
	other  http.Handler // handles all other paths; nil for none

	observers  func(rule string) (middleware.Observer, func()) // nil for none
	maxClients int

	stopping context.Context // ends when the agent refuses new requests and ends all waits
	stop     context.CancelFunc

	mu      sync.Mutex
	clients int
	idle    chan struct{} // closed when stopping has ended and no client is left
}

// DefaultMaxClients is how many clients may hold or wait for locks unless WithMaxClients says otherwise.
const DefaultMaxClients = 8192

// Option is a setting of an Agent.
type Option func(*Agent)

// WithToken makes clients send "Authorization: Bearer " and this token. Default: no token, so every client that can connect can lock.
func WithToken(token string) Option { return func(a *Agent) { a.access.token = []byte(token) } }

// WithHosts allows further names in the header Host, besides redlock, localhost and the loopback addresses. Give the names by which clients know the
// agent. The check keeps out DNS rebinding: a web page whose host name leads to the agent's address, because a browser sends that host name.
func WithHosts(names ...string) Option {
	return func(a *Agent) { a.access.hosts = append(a.access.hosts, names...) }
}

// WithMaxClients bounds how many clients may hold or wait for locks; the agent refuses further clients with 503. Default: DefaultMaxClients.
func WithMaxClients(n int) Option { return func(a *Agent) { a.maxClients = n } }

// WithObservers sets the function that makes an observer for each rule of a gateway. Its argument is the rule's name. The method Rule of
// metrics.Metrics is such a function. The agent calls release when it forgets the rule. Requests that come to no rule of a gateway count under their
// path, /v1/lock or /v1/turn, in place of a name. Default: no observers.
func WithObservers(of func(rule string) (o middleware.Observer, release func())) Option {
	return func(a *Agent) { a.observers = of }
}

// WithLogger sets the log. No key, token or secret is logged. Default: the Locker's logger.
func WithLogger(logger *slog.Logger) Option { return func(a *Agent) { a.logger = logger } }

// WithOther sets the handler for all paths that aren't the agent's own, such as metrics and the console. Requests for these paths need the token of
// WithToken, too. Default: 404.
func WithOther(h http.Handler) Option { return func(a *Agent) { a.other = h } }

// New returns the agent of a Locker. The caller closes the Locker after Serve has returned nil. If Serve returns an error, clients may still hold
// locks, and the Locker must stay open, so that these locks end only with their TTL.
func New(locker *redlock.Locker, opts ...Option) *Agent {
	a := &Agent{locker: locker, budget: middleware.NewBudget(middleware.DefaultBodyBudget), maxClients: DefaultMaxClients, idle: make(chan struct{})}
	for _, opt := range opts {
		opt(a)
	}
	a.logger = cmp.Or(a.logger, inside.Of(locker).Logger)
	a.locks, a.turns = a.unruled("/v1/lock", lockOutcomes), a.unruled("/v1/turn", ownOutcomes)
	a.stopping, a.stop = context.WithCancel(context.Background())
	return a
}

// Serve answers on these listeners until ctx ends, or until no client is left after Retire. When ctx ends, it refuses new requests, ends all waits,
// gives lock holders the grace to finish, and closes the listeners. If it returns an error after that, some clients still hold locks: don't close the
// Locker, but end the process.
//
// Serve notices at once when a client closes its connection, and within seconds when a TCP client is cut off.
func (a *Agent) Serve(ctx context.Context, grace time.Duration, listeners ...net.Listener) error {
	server := &http.Server{
		Handler:           a.handler(),
		ConnContext:       func(ctx context.Context, c net.Conn) context.Context { return context.WithValue(ctx, connKey{}, c) },
		ReadHeaderTimeout: headTimeout,
		ReadTimeout:       bodyTimeout,
		WriteTimeout:      writePatience,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHead,
		ErrorLog:          slog.NewLogLogger(a.logger.Handler(), slog.LevelError),
	}
	failed := make(chan error, len(listeners))
	for _, l := range listeners {
		go func() { failed <- server.Serve(newDoor(l, a.maxClients)) }()
	}
	var err error
	select {
	case err = <-failed:
		err = fmt.Errorf("agent: %w", err)
		grace = 0
	case <-ctx.Done():
	case <-a.idle: // Retire was called, and the last client has left
	}
	ended, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace)
	defer cancel()
	left := a.shutdown(ended)
	if left == nil { // the remaining connections hold no lock, but the responses to calls that had waited may be on their way
		ended, cancel := context.WithTimeout(context.WithoutCancel(ctx), writePatience)
		defer cancel()
		_ = server.Shutdown(ended)
	}
	_ = server.Close()
	return errors.Join(err, left)
}

func (a *Agent) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/lock", a.exchanges(a.serveLock))
	mux.HandleFunc("POST /v1/turn", a.exchanges(a.serveTurn))
	mux.HandleFunc("POST /v1/rule", a.exchanges(a.serveRule))
	mux.HandleFunc("POST /v1/", a.exchanges(func(*exchange, *http.Request) error { return errUnknownPath }))
	health := a.Health()
	mux.Handle("/healthz", health)
	mux.Handle("/readyz", health)
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		err := a.access.check(r)
		switch {
		case err == nil && strings.HasPrefix(r.URL.Path, "/v1/"):
			w.Header().Set("Allow", http.MethodPost)
			err = refuse(http.StatusMethodNotAllowed, "%s takes POST", r.URL.Path)
		case err == nil && a.other == nil:
			err = errUnknownPath
		case err == nil:
			a.other.ServeHTTP(w, r)
			return
		}
		answer(w, r, err)
	})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Redlock-Agent", version)
		mux.ServeHTTP(w, r)
	})
}

// exchanges returns a handler that calls serve for each request that may use the agent. serve either answers the request, or returns the reason for
// refusing it before it has written anything.
func (a *Agent) exchanges(serve func(x *exchange, r *http.Request) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		x := newExchange(w, r)
		var err error
		if !r.ProtoAtLeast(1, 1) {
			err = refuse(http.StatusHTTPVersionNotSupported, "want HTTP/1.1")
		} else if err = a.access.check(r); err == nil {
			err = checkType(r, x.conn.door.unix)
		}
		if err == nil {
			err = serve(x, r)
		}
		if err != nil {
			x.tell(responseOf(x.wait, err))
		}
		x.close()
	}
}

var errUnknownPath = refuse(http.StatusNotFound, "there are /v1/lock, /v1/turn, /v1/rule, /healthz and /readyz")

// answer writes the response to a refused request. If err is nil, it writes nothing, and net/http's server sends 200.
func answer(w http.ResponseWriter, r *http.Request, err error) {
	if err == nil {
		return
	}
	response := responseOf(r.Context(), err)
	maps.Copy(w.Header(), response.header)
	w.WriteHeader(response.status)
	_, _ = w.Write(response.Bytes()) // the client may have left
}

// Health returns the handler for /healthz and /readyz, which need no token, for another server of the process. Serve answers them itself.
func (a *Agent) Health() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/healthz", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("/readyz", func(w http.ResponseWriter, r *http.Request) { answer(w, r, a.ready()) })
	return mux
}

func (a *Agent) ready() error {
	status := a.locker.Status()
	switch {
	case a.stopping.Err() != nil:
		return errStopping
	case !status.Ready():
		return refuse(http.StatusServiceUnavailable, "no lock can be taken now: %d of %d masters would grant one, and %d are needed", status.Asked, len(status.Masters), status.Quorum)
	}
	return nil
}

// Retire makes the agent refuse new requests and end all waits, as when Serve's context ends, but gives lock holders as long as they need. Serve
// returns when the last holder has left. Call it when another agent takes over.
func (a *Agent) Retire() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.stop()
	a.noteIdle()
}

var errStopping = refuse(http.StatusServiceUnavailable, "the agent is about to stop").closing() // the next request reaches the agent that takes over

// enter counts a client that is about to ask for a lock. It returns an error if the agent takes no more clients. Otherwise the handler must call
// leave at its end.
func (a *Agent) enter() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case a.stopping.Err() != nil:
		return errStopping
	case a.clients >= a.maxClients:
		return refuse(http.StatusServiceUnavailable, "at most %d clients may hold or wait for locks: a higher --max-clients of the agent lets more, if its limit of open files does", a.maxClients).closing() // which leaves room for the next one's connection
	}
	a.clients++
	return nil
}

// remain counts a client that has left although its keys stay locked. So the agent stops only when these keys are free. leave ends the count.
func (a *Agent) remain() (leave func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.clients++
	return a.leave
}

func (a *Agent) leave() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.clients--
	a.noteIdle()
}

// noteIdle closes the channel idle when no client is left. Callers hold mu.
func (a *Agent) noteIdle() {
	if a.clients == 0 && a.stopping.Err() != nil {
		select {
		case <-a.idle:
		default:
			close(a.idle)
		}
	}
}

// shutdown refuses new requests for locks, ends all waits, and waits for lock holders until ctx ends. If it returns an error, some clients still hold
// locks, and may rely on them until the TTL is over.
func (a *Agent) shutdown(ctx context.Context) error {
	a.Retire()
	a.mu.Lock()
	clients := a.clients
	a.mu.Unlock()
	end, _ := ctx.Deadline()
	a.logger.Info("agent stops: it takes no new clients, and waits for those that it has", "clients", clients, "at most until", end.Format(time.TimeOnly))
	select {
	case <-a.idle:
		return nil
	case <-ctx.Done():
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.clients == 0 {
		return nil
	}
	return fmt.Errorf("agent: %d of its clients still held locks at the end of the grace: their keys are free when the ttl is over", a.clients)
}
