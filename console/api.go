package console

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/caddy-redlock/caddy-redlock/internal/base/inside"
	"github.com/caddy-redlock/caddy-redlock/redlock"
	"github.com/caddy-redlock/caddy-redlock/redlock/inspect"
)

const (
	defaultLimit = 100
	maxLimit     = 1000
)

func (h *handler) masters(w http.ResponseWriter, parameters map[string]string) *Problem {
	status, code := statusOf(h.lockers()), http.StatusOK
	if _, asked := parameters["ready"]; asked && !status.Ready {
		code = http.StatusServiceUnavailable
	}
	answer(w, "application/json", code, status)
	return nil
}

func (h *handler) locks(w http.ResponseWriter, parameters map[string]string) *Problem {
	prefix, limit, order := parameters["prefix"], defaultLimit, parameters["sort"]
	if text, ok := parameters["limit"]; ok {
		var err error
		if limit, err = strconv.Atoi(text); err != nil || limit < 1 || limit > maxLimit {
			return badRequest("limit must be a number from 1 to " + strconv.Itoa(maxLimit) + ".")
		}
	}
	switch {
	case order != "" && order != byKey && order != byWaiting:
		return badRequest("sort must be " + byKey + " or " + byWaiting + ".")
	case order == byWaiting && parameters["after"] != "":
		return badRequest("after is for a list that is sorted by " + byKey + ".")
	}
	var keys []inspect.KeyStatus
	if hash := parameters["hash"]; hash != "" {
		keys = keysWith(h.lockers(), hash)
	} else {
		keys = keysOf(h.lockers(), prefix)
	}
	answer(w, "application/json", http.StatusOK, locksOf(keys, prefix, parameters["after"], order, limit))
	return nil
}

func (h *handler) inspect(w http.ResponseWriter, r *http.Request, key string, slot int) *Problem {
	seen, err := inspectKey(r.Context(), h.lockers(), key, slot)
	if err != nil {
		return err
	}
	answer(w, "application/json", http.StatusOK, seen)
	return nil
}

func (h *handler) release(w http.ResponseWriter, r *http.Request, key string, slot int, parameters map[string]string) *Problem {
	fence, err := strconv.ParseUint(parameters["fence"], 10, 64)
	if err != nil || fence == 0 {
		return badRequest("fence must be the fencing token of the lock that is to end: GET shows it.")
	}
	failure := release(h.asOperator(r), h.lockers(), key, slot, fence)
	h.audit(r, "a lock was to be released by force", key, failure, "slot", slot, "fence", fence)
	if failure != nil {
		return failure
	}
	answer(w, "application/json", http.StatusOK, Released{Key: key, Slot: slot, Fence: fence})
	return nil
}

func (h *handler) forget(w http.ResponseWriter, r *http.Request, key string) *Problem {
	forgotten, failure := forget(r.Context(), h.lockers(), key)
	h.audit(r, "a remembered response was to be forgotten", key, failure)
	if failure != nil {
		return failure
	}
	answer(w, "application/json", http.StatusOK, forgotten)
	return nil
}

// inspectKey returns a slot of the key, or with anySlot the key, as the masters of each locker see it. If nobody knows it, or too few
// masters answer, that is a problem.
func inspectKey(ctx context.Context, lockers []*redlock.Locker, key string, slot int) (*Inspection, *Problem) {
	all, partial := Inspection{Key: key}, Inspection{Key: key}
	var failure error
	known := make(map[string]bool) // the keyspaces whose masters have answered
	for _, l := range lockers {
		keyspace := inside.Of(l).Keyspace
		if known[keyspace] {
			continue
		}
		seen, err := inspectLocker(ctx, l, key, slot)
		switch {
		case errors.Is(err, redlock.ErrClosed): // after a reload
		case err == nil:
			known[keyspace] = true
			all.add(*seen)
		default:
			failure = errors.Join(failure, err)
			if seen != nil {
				partial.Lockers = append(partial.Lockers, *seen)
			}
		}
	}
	switch {
	case len(all.Lockers) > 0:
		return &all, nil
	case failure != nil:
		err := noQuorum(failure)
		err.Lockers = partial.Lockers
		return nil, err
	}
	return nil, problem("unknown_key", http.StatusNotFound, "Nobody holds the key or waits for it, and no result is remembered for it", "")
}

func noQuorum(err error) *Problem {
	return problem("no_quorum", http.StatusServiceUnavailable, "Too few masters answer", err.Error())
}

// release ends the lock on the slot with this fence. Only lockers with the masters and the prefix of the lock can do that.
func release(ctx context.Context, lockers []*redlock.Locker, key string, slot int, fence uint64) *Problem {
	var failure error
	for _, l := range lockers {
		switch err := inspect.Force(ctx, l, key, slot, fence); {
		case err == nil:
			return nil
		case !errors.Is(err, inspect.ErrFenceChanged) && !errors.Is(err, redlock.ErrClosed):
			failure = errors.Join(failure, err)
		}
	}
	if failure != nil {
		return noQuorum(failure)
	}
	seen, err := inspectKey(ctx, lockers, key, anySlot)
	if err != nil {
		return err
	}
	return notReleased(seen, slot)
}

func forget(ctx context.Context, lockers []*redlock.Locker, key string) (*Forgotten, *Problem) {
	all, done := Forgotten{Key: key}, false
	var failure, held error
	for _, l := range lockers {
		left, err := inspect.Forget(ctx, l, key)
		for _, m := range left {
			if trouble := (MasterTrouble{Name: m.Master, Error: m.Err.Error()}); !slices.Contains(all.Left, trouble) {
				all.Left = append(all.Left, trouble)
			}
		}
		switch {
		case err == nil:
			done = true
		case errors.Is(err, redlock.ErrHeld):
			held = err
		case !errors.Is(err, redlock.ErrNotRemembered) && !errors.Is(err, redlock.ErrClosed):
			failure = errors.Join(failure, err)
		}
	}
	switch {
	case held != nil:
		return nil, problem("held", http.StatusConflict, "Somebody holds the key", "Nothing was forgotten: the work is being done. Ask again when it is done.")
	case failure != nil:
		return nil, noQuorum(failure)
	case done:
		return &all, nil
	}
	detail := ""
	for _, m := range all.Left {
		detail += "It isn't known of " + m.Name + ": " + m.Error + ". "
	}
	return nil, problem("unknown_result", http.StatusNotFound, "No result is remembered for the key", strings.TrimSpace(detail))
}
