package agent

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/caddy-redlock/caddy-redlock/internal/base/inside"
	"github.com/caddy-redlock/caddy-redlock/internal/engine"
	"github.com/caddy-redlock/caddy-redlock/internal/programs/rule"
	"github.com/caddy-redlock/caddy-redlock/middleware"
	"github.com/caddy-redlock/caddy-redlock/redlock"
)

const maxLockLine = 64 << 10

// lockRequest is the body of POST /v1/lock.
type lockRequest struct {
	Key       string         `json:"key"`
	Keys      []string       `json:"keys"`
	Wait      *rule.Duration `json:"wait"`         // nil: no limit, except for the wait for masters
	Masters   *rule.Duration `json:"masters_wait"` // how long to wait while too few masters answer; nil: the Locker's setting
	Try       bool           `json:"try"`
	TTL       rule.Duration  `json:"ttl"`
	MaxHold   rule.Duration  `json:"max_hold"`
	Label     string         `json:"label"`
	Heartbeat rule.Duration  `json:"heartbeat"`
	Pulse     rule.Duration  `json:"pulse"`    // how often a waiting client gets an interim response; 0: never
	Quiet     bool           `json:"quiet"`    // the client gets a line at the beginning, after each mark and at the end, but none for a renewal
	Linger    bool           `json:"linger"`   // if the connection ends before the body, the lock stays until the time that the lines have promised
	OncePer   *rule.Duration `json:"once_per"` // how long the work counts as done, if the body ends with the word done; nil: the work is not recorded
	Once      *rule.Duration `json:"once"`     // as OncePer, but for work with a result, which is the text after the word done

	Most   middleware.Concurrency `json:"concurrency"` // nil: 1
	Values map[string]string      `json:"values"`      // not nil: the keys are templates, as in a rule
}

func (a *Agent) serveLock(x *exchange, _ *http.Request) error {
	if err := a.enter(); err != nil {
		return a.locks.refused(x, nil, err)
	}
	defer a.leave()
	request, err := readLockRequest(x)
	if err != nil {
		return a.locks.refused(x, nil, err)
	}
	x.lingers = request.Linger
	if request.Once != nil {
		x.most = len(done) + 1 + maxLockLine
	}
	x.watch()
	lock, err := a.take(x, request)
	if err != nil {
		return a.locks.refused(x, request.Keys, err)
	}
	var lost error
	release := a.locks.Acquired(request.Keys, lock)
	defer func() { release(lost) }()
	s := &stream{exchange: x, lock: lock, quiet: request.Quiet}
	if err := s.hold(request.slot(lock), time.Duration(request.Heartbeat)); err != nil {
		if errors.Is(err, errSilent) {
			lost = errSilent
		}
		return nil
	}
	result, isDone, tooLong := x.saidDone()
	switch {
	case tooLong:
		end := releasedFor(lock.Unlock())
		if end.Released {
			end.Forgotten, end.Detail = true, "what the client said at the end is too long: nothing is remembered"
		}
		s.end(end)
	case isDone && request.OncePer != nil:
		s.end(releasedFor(lock.UnlockDone()))
	case isDone && request.Once != nil:
		s.end(releasedFor(lock.UnlockWith(result, time.Duration(*request.Once))))
	default:
		s.end(releasedFor(lock.Unlock()))
	}
	return nil
}

// slot returns the JSON field with the number of the lock's slot, for the first line of the response. It returns nil for several keys, and for a key
// that only one client may hold.
func (r *lockRequest) slot(lock *redlock.Lock) []byte {
	if len(r.Keys) > 1 || r.Most == nil || r.Most[0] < 2 {
		return nil
	}
	return strconv.AppendInt([]byte(`,"slot":`), int64(lock.Slot()), 10)
}

// readLockRequest reads the request from the body: from the first line if the client may keep the body open, and otherwise from the whole body.
func readLockRequest(x *exchange) (*lockRequest, error) {
	var text []byte
	var err error
	if x.open {
		text, err = readLine(x.lines, maxLockLine)
	} else {
		text, err = x.readAll(maxLockLine)
	}
	if err != nil {
		return nil, lineError(err)
	}
	request, err := parseLockRequest(text)
	if err == nil && (request.Heartbeat != 0 || request.OncePer != nil || request.Once != nil) && !x.open {
		err = errors.New("heartbeat, once_per and once: they need a body that is sent in chunks, and kept open for what the client says")
	}
	if err != nil {
		return nil, refuse(http.StatusBadRequest, "%v", err)
	}
	return request, nil
}

func parseLockRequest(text []byte) (*lockRequest, error) {
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	request := new(lockRequest)
	if err := decoder.Decode(request); err != nil {
		if errors.Is(err, io.EOF) {
			err = errors.New(`the body is empty: want JSON such as {"key":"order:42"}`)
		}
		return nil, wrongJSON(err)
	}
	if _, err := decoder.Token(); err != io.EOF {
		return nil, errors.New("there is something after the JSON object")
	}
	switch {
	case request.Key != "" && request.Keys != nil:
		return nil, errors.New("key and keys: want one of them")
	case request.Key != "":
		request.Keys = []string{request.Key}
	case len(request.Keys) == 0:
		return nil, errors.New(`key: want a text that isn't empty, such as {"key":"order:42"}`)
	}
	isUncertain := func(text string) bool { return strings.ContainsRune(text, utf8.RuneError) }
	if slices.ContainsFunc(request.Keys, isUncertain) || slices.ContainsFunc(slices.Collect(maps.Values(request.Values)), isUncertain) {
		return nil, errors.New("key: not UTF-8, or with the character U+FFFD, which decoders write in place of what isn't: two keys would be one")
	}
	if request.Values != nil {
		var err error
		if request.Keys, err = middleware.Keys(request.Keys, request.Values); err != nil {
			return nil, err
		}
	}
	if request.Most != nil {
		if err := engine.CheckConcurrency(request.Most, len(request.Keys)); err != nil {
			return nil, err
		}
	}
	isMany := func(n int) bool { return n > 1 }
	switch {
	case (request.Once != nil || request.OncePer != nil) && (len(slices.Compact(slices.Clone(request.Keys))) > 1 || slices.ContainsFunc(request.Most, isMany)):
		return nil, errors.New("once and once_per: want one key, without concurrency")
	case request.Once != nil && time.Duration(*request.Once) < time.Millisecond:
		return nil, fmt.Errorf("once %v: must be at least 1ms", time.Duration(*request.Once))
	case request.OncePer != nil && time.Duration(*request.OncePer) < redlock.MinPeriod: // the library wouldn't refuse 0, which means no period there
		return nil, fmt.Errorf("once_per %v: must be at least %v", time.Duration(*request.OncePer), redlock.MinPeriod)
	case request.Once != nil && request.OncePer != nil:
		return nil, errors.New("once and once_per: want one of them")
	}
	if request.Heartbeat < 0 {
		return nil, fmt.Errorf("heartbeat %v: must be above 0", time.Duration(request.Heartbeat))
	}
	if request.Pulse != 0 && time.Duration(request.Pulse) < minPulse {
		return nil, fmt.Errorf("pulse %v: must be at least %v", time.Duration(request.Pulse), minPulse)
	}
	return request, nil
}

// wrongJSON returns an error about JSON in the words of docs/protocol.md, without the names of Go.
func wrongJSON(err error) error {
	wrong := (*json.UnmarshalTypeError)(nil)
	if !errors.As(err, &wrong) {
		return errors.New(strings.TrimPrefix(err.Error(), "json: "))
	}
	want := "a number"
	switch wrong.Type.Kind() {
	case reflect.String:
		want = "a text"
	case reflect.Bool:
		want = "true or false"
	case reflect.Slice:
		want = "a list"
	case reflect.Struct, reflect.Map:
		want = "an object"
	}
	if wrong.Field == "" {
		return fmt.Errorf("the JSON is of the type %s: want %s", wrong.Value, want)
	}
	return fmt.Errorf("%s: is of the type %s: want %s", wrong.Field, wrong.Value, want)
}

// take takes the lock. The wait for the lock also ends when the client leaves, or when the agent is about to stop.
func (a *Agent) take(x *exchange, request *lockRequest) (*redlock.Lock, error) {
	var opts []redlock.LockOption
	wait := request.Wait
	if request.OncePer != nil && (wait == nil || *wait > *request.OncePer) {
		wait = request.OncePer // the next period's client asks for the lock
	}
	switch {
	case request.Try:
		opts = append(opts, redlock.WithWait(0))
	case wait != nil:
		opts = append(opts, redlock.WithWait(time.Duration(*wait)))
	}
	if request.Masters != nil {
		opts = append(opts, redlock.WithMastersWait(time.Duration(*request.Masters)))
	}
	if request.TTL != 0 {
		opts = append(opts, redlock.WithTTL(time.Duration(request.TTL)))
	}
	if request.MaxHold != 0 {
		opts = append(opts, redlock.WithMaxHold(time.Duration(request.MaxHold)))
	}
	if request.Label != "" {
		opts = append(opts, redlock.WithLabel(request.Label))
	}
	for i, n := range request.Most {
		if len(request.Most) == 1 {
			opts = append(opts, redlock.WithConcurrency(n))
		} else {
			opts = append(opts, redlock.WithConcurrency(n, request.Keys[i]))
		}
	}
	if request.OncePer != nil {
		opts = append(opts, redlock.WithOncePer(time.Duration(*request.OncePer)))
	}
	if request.Once != nil {
		opts = append(opts, redlock.WithRecall())
	}
	if !request.Try && (wait == nil || *wait > 0) {
		defer a.locks.Waits()()
	}
	defer x.pulse(time.Duration(request.Pulse))()
	defer context.AfterFunc(a.stopping, func() { x.stopWait(errStopping) })()
	lock, err := a.locker.LockAll(x.wait, request.Keys, opts...)
	var done *redlock.DoneError
	switch cause := context.Cause(x.wait); {
	case err == nil:
		return lock, nil
	case cause == errStopping:
		return nil, errStopping
	case errors.As(err, &done):
		return nil, doneProblem(done, request.OncePer != nil)
	case !isOfLock(err):
		text := strings.TrimPrefix(err.Error(), "redlock: ")
		if limit := (*inside.OptionError)(nil); errors.As(err, &limit) {
			text = limit.Named(strings.ReplaceAll(limit.Option, " ", "_"))
		}
		return nil, refuse(http.StatusBadRequest, "%s", text)
	}
	return nil, err
}

func (x *exchange) readAll(most int) ([]byte, error) {
	text, err := io.ReadAll(io.LimitReader(x.lines, int64(most)+1))
	if err == nil && len(text) > most {
		err = errLineTooLong
	}
	x.atEnd = err == nil
	return text, err
}

var (
	errLineTooLong = errors.New("line is too long")
	errEndsEarly   = refuse(http.StatusBadRequest, "the request ends early")
)

// readLine reads a line of at most this many bytes, and returns it without its line break. The last line of a body may lack the line break.
func readLine(from *bufio.Reader, most int) ([]byte, error) {
	var line []byte
	for {
		part, err := from.ReadSlice('\n')
		if len(line)+len(part) > most {
			return nil, errLineTooLong
		}
		line = append(line, part...)
		switch {
		case err == nil:
			return line[:len(line)-1], nil
		case err == io.EOF && len(line) > 0:
			return line, nil
		case err != bufio.ErrBufferFull:
			return nil, err
		}
	}
}

func lineError(err error) error {
	switch {
	case errors.Is(err, errLineTooLong):
		return refuse(http.StatusRequestHeaderFieldsTooLarge, "a line of the request is too long")
	case tooLate(err):
		return refuse(http.StatusRequestTimeout, "the request did not arrive in time")
	}
	return errEndsEarly
}
