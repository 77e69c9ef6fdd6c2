package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/spf13/cobra"

	"github.com/caddy-redlock/caddy-redlock/agent"
	"github.com/caddy-redlock/caddy-redlock/console"
	"github.com/caddy-redlock/caddy-redlock/internal/base/inside"
	"github.com/caddy-redlock/caddy-redlock/internal/programs/connect"
	"github.com/caddy-redlock/caddy-redlock/internal/programs/doctor"
	"github.com/caddy-redlock/caddy-redlock/metrics"
	"github.com/caddy-redlock/caddy-redlock/redlock"
)

func agentCmd() *cobra.Command {
	var a agentCommand
	a.masters.AllowMemory = true
	cmd := &cobra.Command{
		Use:   "agent [flags]",
		Short: "Takes locks for programs in any language, over a Unix socket or TCP",
		Long: `
Takes locks for programs in any language: a client holds a lock for as long as its
request lasts, on a Unix socket or a TCP address. docs/agent.md has the clients.

  curl -N --unix-socket /run/redlock/redlock.sock http://redlock/v1/lock -d '{"key":"order:42"}'

When it is told to end (TERM), it refuses new requests, ends all waits, and waits for
those who hold locks, for --grace. A lock that is still held then, or when it is told
to end once more, is left to its ttl. With --replace, it takes the socket of an agent
that is there already, which serves those who hold its locks to their end, and ends.
On HUP, it reads --password-file and the files of --tls-… again, for new connections.

` + connect.Help,
		Example:               `  redlock agent --masters redis://10.0.0.1:6379,redis://10.0.0.2:6379,redis://10.0.0.3:6379`,
		Args:                  cobra.NoArgs,
		DisableFlagsInUseLine: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := connect.WholeEnvironment(cmd.Flags()); err != nil {
				return err
			}
			if len(a.listen) == 0 {
				address, because := socketOf(os.Geteuid(), os.Getenv("XDG_RUNTIME_DIR"))
				if because != "" {
					tell("XDG_RUNTIME_DIR %s, and is not used", because)
				}
				a.listen = []string{address}
			}
			return a.run(cmd.Context())
		},
	}
	flags := cmd.Flags()
	a.masters.AddFlags(flags)
	connect.ListVar(flags, &a.listen, "listen", "addresses", "Where to listen: unix:/path, or host:port, which needs a token; systemd's sockets take its place (default: unix:/run/redlock/redlock.sock, and without root unix:$XDG_RUNTIME_DIR/redlock/redlock.sock)")
	flags.BoolVar(&a.socket.replace, "replace", false, "Take the Unix sockets of an agent that listens there; it ends when its last holder has")
	flags.StringVar(&a.operators, "operators", "", "Socket unix:/path for operators, with the whole console; its mode is 0600 (default: none)")
	flags.StringVar(&a.metrics, "metrics-listen", "", "Address for Prometheus, without a token: host:port, or unix:/path; it serves /metrics, /healthz and /readyz (default: none)")
	flags.StringVar(&a.socket.mode, "socket-mode", "0660", "Mode of the Unix sockets")
	flags.StringVar(&a.socket.group, "socket-group", "", "Group of the Unix sockets (default: that of the process)")
	flags.StringVar(&a.tokenFile, "token-file", "", "File with the token that clients must send; or REDLOCK_AGENT_TOKEN")
	connect.ListVar(flags, &a.hosts, "host", "names", "Further names by which clients know the agent, in the header Host")
	flags.IntVar(&a.maxClients, "max-clients", agent.DefaultMaxClients, "How many clients may hold or wait for locks")
	flags.IntVar(&a.maxWaiters, "max-waiters", redlock.DefaultMaxWaiters, "How many clients may wait for one key; further ones get 503")
	connect.DurationVar(flags, &a.grace, "grace", "", 30*time.Second, "How long those who hold locks have to end when the agent ends")
	return cmd
}

// socketOf returns the address of an agent of this user: a user without root has a folder of their own for sockets. because says why that
// folder is not used.
func socketOf(uid int, runtimeDir string) (address, because string) {
	const standard = "unix:/run/redlock/redlock.sock"
	if uid == 0 || runtimeDir == "" {
		return standard, ""
	}
	if !filepath.IsAbs(runtimeDir) {
		return standard, "is not an absolute path"
	}
	switch there, err := os.Stat(runtimeDir); {
	case err != nil:
		return standard, "can't be read: " + err.Error()
	case !ownedBy(there, uid):
		return standard, "belongs to another user"
	case there.Mode()&0o022 != 0:
		return standard, "is a folder in which others may write"
	}
	return "unix:" + filepath.Join(runtimeDir, "redlock", "redlock.sock"), ""
}

type agentCommand struct {
	masters    connect.Settings
	listen     []string
	operators  string
	metrics    string
	socket     socketRights
	tokenFile  string
	hosts      []string
	maxClients int
	maxWaiters int
	grace      time.Duration
}

func (a *agentCommand) run(ctx context.Context) error {
	hangup := make(chan os.Signal, 1)
	signal.Notify(hangup, syscall.SIGHUP) // at once, so that it never ends the agent
	defer signal.Stop(hangup)
	token, err := tokenOf(a.tokenFile)
	if err != nil {
		return err
	}
	if a.maxClients <= 0 {
		return fmt.Errorf("--max-clients %d: must be above 0", a.maxClients)
	}
	if a.maxWaiters <= 0 {
		return fmt.Errorf("--max-waiters %d: must be above 0", a.maxWaiters)
	}
	logger := slog.New(slog.NewTextHandler(os.Stderr, nil))
	series := metrics.New()
	masters, options, err := a.masters.Resolve()
	if err != nil {
		return err
	}
	locker, err := redlock.New(masters, append(options.List(), redlock.WithLogger(logger), redlock.WithObserver(series.Observer()), redlock.WithMaxWaiters(a.maxWaiters))...)
	if err != nil {
		return err
	}
	logger = inside.Of(locker).Logger // a request doesn't wait for standard error
	defer a.renewAt(hangup, logger)()
	series.Watch(locker)
	ctx, stop := untilSignaled(ctx)
	defer stop()
	forMetrics, err := a.metricsListener()
	if err != nil {
		return errors.Join(err, locker.Close())
	}
	listeners, operators, err := a.listeners(token != "")
	if err != nil {
		if forMetrics != nil {
			closeAll([]net.Listener{forMetrics})
		}
		return errors.Join(err, locker.Close())
	}
	if files := openFiles(); clientsWithin(files, len(listeners)) < a.maxClients {
		logger.Warn("too few open files are allowed for --max-clients, so fewer clients are let in: raise LimitNOFILE (systemd), nofile (Docker) or ulimit -n to what is needed, or lower --max-clients",
			"open_files", files, "needed", filesFor(a.maxClients, len(listeners)), "max_clients", a.maxClients, "clients", clientsWithin(files, len(listeners)))
		a.maxClients = clientsWithin(files, len(listeners))
	}
	seen := console.New(func() []*redlock.Locker { return []*redlock.Locker{locker} }, console.WithHosts("*"), console.WithLogger(logger)) // the agent checks the Host
	scraped := scrapes(series)
	served := agent.New(locker, agent.WithToken(token), agent.WithHosts(a.hosts...), agent.WithMaxClients(a.maxClients), agent.WithLogger(logger),
		agent.WithObservers(series.Rule), agent.WithOther(beside(scraped, forClients(seen))))
	stopMetrics := func() {}
	if a.metrics != "" {
		mux := http.NewServeMux()
		mux.Handle("/", served.Health())
		mux.Handle("/metrics", scraped)
		stopMetrics = a.serveMetrics(forMetrics, mux, logger)
		defer stopMetrics()
	}
	for _, l := range listeners {
		logger.Info("agent serves", "network", l.Addr().Network(), "address", l.Addr().String())
		if u, ok := l.(*unixSocket); ok {
			defer u.watch(func() {
				logger.Info("another agent has taken the socket: this one serves those who hold locks to their end", "address", u.path)
				stopMetrics()
				served.Retire()
			})()
		}
	}
	if operators != nil {
		logger.Info("agent serves operators", "address", operators.Addr().String())
		whole := beside(scraped, seen)
		whole.Handle("GET /console/doctor", examiner(masters, options))
		server := &http.Server{Handler: asAgent(whole), ReadHeaderTimeout: 5 * time.Second, IdleTimeout: 2 * time.Minute}
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			if err := server.Serve(operators); !errors.Is(err, http.ErrServerClosed) {
				logger.Error("operators are not served any more", "err", err)
			}
		}()
		defer func() { _ = server.Close(); <-ended }()
	}
	notifySystemd("READY=1")
	if err := served.Serve(ctx, a.grace, listeners...); err != nil {
		return err // without Close: it would release locks on which clients still rely
	}
	return locker.Close()
}

// renewAt reads the files with secrets again at each signal, until stop is called.
func (a *agentCommand) renewAt(hangup <-chan os.Signal, logger *slog.Logger) (stop func()) {
	stopping, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case <-stopping:
				return
			case <-hangup:
			}
			if err := a.masters.Renew(); err != nil {
				logger.Error("the password and the certificates stay as they were", "err", err)
			} else {
				logger.Info("the password and the certificates were read again, for new connections to the masters")
			}
		}
	}()
	return func() { close(stopping); <-ended }
}

// untilSignaled returns a context that ends when the process is told to end. The next signal ends the process at once, and leaves the locks to their
// TTL. With signal.NotifyContext the next signal would be lost.
func untilSignaled(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	caught := make(chan os.Signal, 1)
	signal.Notify(caught, syscall.SIGTERM, os.Interrupt)
	go func() {
		defer cancel()
		select {
		case <-caught:
		case <-ctx.Done():
		}
		signal.Stop(caught)
	}()
	return ctx, cancel
}

// scrapes returns a handler for the metrics.
func scrapes(series *metrics.Metrics) http.Handler {
	registry := prometheus.NewRegistry()
	registry.MustRegister(series, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return promhttp.HandlerFor(registry, promhttp.HandlerOpts{})
}

// beside returns a handler for the metrics (scraped), and for the console or a part of it (seen).
func beside(scraped, seen http.Handler) *http.ServeMux {
	mux := http.NewServeMux()
	mux.Handle("/metrics", scraped)
	mux.Handle("/console/", http.StripPrefix("/console", seen))
	return mux
}

// examiner returns a handler for redlock doctor, which looks at the masters with the agent's settings and secrets.
func examiner(masters []redlock.Master, o connect.Options) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		patience, err := time.ParseDuration(r.URL.Query().Get("patience"))
		if err != nil || patience <= 0 {
			http.Error(w, "patience: want a duration above 0, such as 2s", http.StatusBadRequest)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(doctor.Examine(r.Context(), examination(masters, o, patience))) // the client may have left
	})
}

// asAgent returns a handler whose responses say, as those of package agent do, that an agent answers.
func asAgent(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Redlock-Agent", "1")
		h.ServeHTTP(w, r)
	})
}

// forClients returns the part of the console for everybody who may lock: the state of the masters, and who has a key that the
// request names.
func forClients(all http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet && (r.URL.Path == "/masters" || r.URL.Path == "/locks" && r.URL.Query().Get("key") != "") {
			all.ServeHTTP(w, r)
			return
		}
		w.Header().Set("Content-Type", "application/problem+json")
		w.WriteHeader(http.StatusForbidden)
		_ = json.NewEncoder(w).Encode(console.Problem{Title: forOperators, Status: http.StatusForbidden, // the client may have left
			Detail: "to list keys and to release locks of others is for operators: start the agent with --operators unix:/path, and ask at that socket"})
	})
}

// tokenOf returns the token in the file of --token-file, or without one that of the environment.
func tokenOf(file string) (string, error) {
	if file == "" {
		return strings.TrimSpace(os.Getenv("REDLOCK_AGENT_TOKEN")), nil // the variable may have been set from a file, with its newline
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return "", fmt.Errorf("--token-file: %w", err)
	}
	token := strings.TrimSpace(string(text))
	if token == "" {
		return "", fmt.Errorf("--token-file %s: is empty", file)
	}
	return token, nil
}

// listeners returns the sockets that systemd has passed, or else the sockets of --listen, and the socket for operators, or nil. The Unix sockets get
// their names last, so that an agent which can't start takes nobody's place.
func (a *agentCommand) listeners(hasToken bool) (all []net.Listener, operators net.Listener, err error) {
	if all, err = systemdSockets(); err != nil {
		return nil, nil, err
	}
	opened := slices.Clone(all)
	defer func() {
		if err != nil {
			closeAll(opened)
		}
	}()
	if len(all) == 0 {
		for _, address := range a.listen {
			l, err := a.open(address)
			if err != nil {
				return nil, nil, fmt.Errorf("--listen %s: %w", address, err)
			}
			all, opened = append(all, l), append(opened, l)
		}
	}
	for _, l := range all {
		if l.Addr().Network() != "unix" && !hasToken {
			return nil, nil, errors.New("an agent on a TCP address needs a token: set --token-file or REDLOCK_AGENT_TOKEN, or listen on a Unix socket")
		}
	}
	if a.operators != "" {
		path, ok := strings.CutPrefix(a.operators, "unix:")
		if !ok || path == "" {
			return nil, nil, fmt.Errorf("--operators %s: want unix:/path", a.operators)
		}
		rights := socketRights{mode: "0600", replace: a.socket.replace}
		if operators, err = rights.listen(path); err != nil {
			return nil, nil, fmt.Errorf("--operators %s: %w", a.operators, err)
		}
		opened = append(opened, operators)
	}
	for _, l := range opened {
		if u, ok := l.(*unixSocket); ok {
			if err := u.publish(); err != nil {
				return nil, nil, fmt.Errorf("unix:%s: %w", u.path, err)
			}
		}
	}
	return all, operators, nil
}

func (a *agentCommand) open(address string) (net.Listener, error) {
	if path, ok := strings.CutPrefix(address, "unix:"); ok {
		return a.socket.listen(path)
	}
	return net.Listen("tcp", cmp.Or(strings.TrimPrefix(address, "tcp:"), address))
}

func closeAll(listeners []net.Listener) {
	for _, l := range listeners {
		if u, ok := l.(*unixSocket); ok {
			u.abandon()
		}
		_ = l.Close()
	}
}
