package caddyredlock

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/redis/go-redis/v9"
	"go.uber.org/zap"
	"go.uber.org/zap/exp/zapslog"

	"github.com/caddy-redlock/caddy-redlock/internal/base/inside"
	"github.com/caddy-redlock/caddy-redlock/internal/base/notices"
	"github.com/caddy-redlock/caddy-redlock/redlock"
)

// lockers has the lockers in use, by the sum of their settings. During a reload, the old and the new configuration share a
// locker if their settings are equal. Each request counts as a user too, while it runs and while hold_after_abort keeps its keys, because
// Caddy cleans up the old configuration while its last requests still hold locks.
var lockers = caddy.NewUsagePool()

type pooledLocker struct {
	*redlock.Locker
	masters []redlock.Master
	born    time.Time
	closed  chan struct{}
}

// Destruct closes the locker; the pool calls it when the last user has left. A process that exits while hold_after_abort holds a key doesn't release
// that key: the work may still run, so the lease keeps others out until it ends.
func (p pooledLocker) Destruct() error {
	defer close(p.closed)
	return p.Close()
}

// setSum computes the sum of the settings once, so that requests need not.
func (s *settings) setSum() {
	text, _ := json.Marshal(s) // strings, numbers and bytes always encode
	s.sum = sha256.Sum256(text)
}

// join returns the locker for these settings, and adds a user to it, which must call leave.
func (s *settings) join() (*redlock.Locker, error) {
	pooled, _, err := lockers.LoadOrNew(s.sum, func() (caddy.Destructor, error) {
		masters, err := s.masters()
		if err != nil {
			return nil, fmt.Errorf("masters: %w", err)
		}
		locker, err := redlock.New(masters, append(s.List(), inside.WithoutWarnings.(redlock.Option), redlock.WithLogger(slog.New(currentLog{})), redlock.WithObserver(series.Observer()))...)
		if err == nil {
			series.Watch(locker)
		}
		return pooledLocker{locker, masters, time.Now(), make(chan struct{})}, err
	})
	if err != nil {
		return nil, err
	}
	return pooled.(pooledLocker).Locker, nil
}

// share is the use of a pooled locker by an app itself, besides the uses by its requests. It begins with the first request or with Start, whichever
// comes first, and ends with Cleanup, so that the locker stays while there is no request.
type share struct {
	once   sync.Once
	taken  bool
	err    error
	locker *redlock.Locker
	before []pooledLocker // the lockers of other settings that were in use when the share began; see strangers
}

// take joins the pool when it is called for the first time.
func (s *share) take(of *settings) error {
	s.once.Do(func() {
		s.locker, s.err = of.join()
		s.taken = s.err == nil
		s.before = of.strangers()
	})
	return s.err
}

// giveBack leaves the pool. From now on nobody joins it for the app.
func (s *share) giveBack(of *settings) error {
	s.once.Do(func() {})
	if !s.taken {
		return nil
	}
	s.taken = false
	return of.leave()
}

// valid returns the error with which join would fail, or nil. It logs the warnings, which join doesn't. It connects to no master, because it makes a
// locker on masters in memory that have the same names.
func (s *settings) valid() error {
	masters, err := s.masters()
	if err != nil {
		return fmt.Errorf("masters: %w", err)
	}
	for i, m := range masters {
		masters[i] = inside.NewMemoryMaster(m.String()).(redlock.Master)
	}
	locker, err := redlock.New(masters, append(s.List(), redlock.WithLogger(slog.New(warningLog{})))...)
	if err != nil {
		return err
	}
	return locker.Close()
}

// leave removes a user from the locker; the last one closes it.
func (s *settings) leave() error {
	_, err := lockers.Delete(s.sum)
	return err
}

// strangers returns the lockers in use that could lock a key of these settings at the same time: the masters keep lockers apart only if these have
// the same prefix, and a majority of the masters in common.
func (s *settings) strangers() (strangers []pooledLocker) {
	ours, err := s.masters()
	lockers.Range(func(sum, value any) bool {
		p := value.(pooledLocker)
		if sum != s.sum && (err != nil || inside.Of(p.Locker).Prefix != s.Prefix || !inside.Overlap(ours, p.masters)) {
			strangers = append(strangers, p)
		}
		return true
	})
	return strangers
}

// refusal returns why these settings must not be loaded now, or nil.
func (s *settings) refusal() error {
	held := 0
	for _, p := range s.strangers() {
		held += p.Status().Held
	}
	if held == 0 {
		return nil
	}
	return fmt.Errorf("the running configuration holds %d locks, with another key_prefix, or on masters that have no majority in common with these: "+
		"requests of both would run beside each other. Load this when nothing is locked, add or remove one master at a time, or stop Caddy and start it with this", held)
}

// changeover is how long a request waits for the requests of a configuration that has just been replaced.
const changeover = 5 * time.Second

var errChangeover = errors.New("requests of a former configuration still lock with another key_prefix, or on other masters: try again")

// awaitEnd waits until lockers are closed, because nothing else keeps their requests and this one apart. After changeover it
// returns an error.
func awaitEnd(ctx context.Context, before []pooledLocker) error {
	if len(before) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, changeover)
	defer cancel()
	for _, p := range before {
		select {
		case <-p.closed:
		case <-ctx.Done():
			return errChangeover
		}
	}
	return nil
}

// lockersInUse returns the lockers, the newest first. It adds no user, so a locker may be closed at any time.
func lockersInUse() (inUse []*redlock.Locker) {
	var pooled []pooledLocker
	lockers.Range(func(_, value any) bool {
		pooled = append(pooled, value.(pooledLocker))
		return true
	})
	slices.SortFunc(pooled, func(a, b pooledLocker) int { return b.born.Compare(a.born) })
	for _, p := range pooled {
		inUse = append(inUse, p.Locker)
	}
	return inUse
}

// exiting is canceled when the process is about to exit: then requests stop waiting for locks.
var exiting, exit = context.WithCancel(context.Background())

// noticeExit is called when a server shuts down, before the server waits for its requests. A reload shuts servers down too.
func noticeExit() {
	if caddy.Exiting() {
		exit()
	}
}

// queuedLog returns a module's log for requests, which don't wait for it, and the queue before it, which the module must close.
func queuedLog(ctx caddy.Context) (lines *notices.Queue[notices.Line], logger *slog.Logger) {
	lines = new(notices.Queue[notices.Line])
	_, logger = notices.Log(lines, ctx.Slogger().Handler())
	return lines, logger
}

// currentLog writes to the log of the current configuration, because a locker may outlive the configuration that created it.
type currentLog struct{}

func (currentLog) handler() slog.Handler {
	return zapslog.NewHandler(caddy.Log().Core(), zapslog.WithName("redlock"), zapslog.AddStacktraceAt(slog.Level(127)))
}

func (l currentLog) Enabled(ctx context.Context, level slog.Level) bool {
	return l.handler().Enabled(ctx, level)
}

func (l currentLog) Handle(ctx context.Context, record slog.Record) error {
	return l.handler().Handle(ctx, record)
}

func (l currentLog) WithAttrs(attrs []slog.Attr) slog.Handler { return l.handler().WithAttrs(attrs) }

func (l currentLog) WithGroup(name string) slog.Handler { return l.handler().WithGroup(name) }

// warningLog is currentLog for warnings and errors alone.
type warningLog struct{ currentLog }

func (l warningLog) Enabled(ctx context.Context, level slog.Level) bool {
	return level >= slog.LevelWarn && l.currentLog.Enabled(ctx, level)
}

func init() { redis.SetLogger(clientLog{}) }

// clientLog writes the messages of the Redis client to Caddy's debug log. The client would print them to standard error.
// Package redlock itself logs once when a master fails, so these are only needed for debugging.
type clientLog struct{}

var clientLines = notices.Queue[string]{
	Receive: func(text string) { clientLogger().Debug(text) },
	Missed: func(n uint64) {
		clientLogger().Debug("messages are missing: the log was too slow", zap.Uint64("messages", n))
	},
}

func clientLogger() *zap.Logger { return caddy.Log().Named("redlock.client") }

// Printf doesn't wait for the log, which may block, because the caller is making a connection for locks.
func (clientLog) Printf(_ context.Context, format string, args ...any) {
	if clientLogger().Core().Enabled(zap.DebugLevel) {
		clientLines.Push(fmt.Sprintf(format, args...))
	}
}
