package redlock_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/caddy-redlock/caddy-redlock/internal/redistest"
	"github.com/caddy-redlock/caddy-redlock/redlock"
)

// A history of results is checked key by key against work that is done once: it begins only while it has no result, and all who
// meet a result meet the same. A result that no quorum has confirmed may count at any time from then on, or never.
type resultOp struct {
	kind   resultKind
	result string
}

type resultKind string

const (
	workBegins  resultKind = "begins"
	workIsDone  resultKind = "done"
	resultIsMet resultKind = "met"
	maybeDone   resultKind = "maybe done"
)

var resultModel = func() porcupine.Model {
	model := porcupine.NondeterministicModel{
		Init: func() []any { return []any{""} },
		Step: func(state, input, _ any) []any {
			op, known := input.(resultOp), state.(string)
			switch {
			case op.kind == maybeDone && known == "":
				return []any{"", op.result}
			case op.kind == maybeDone, op.kind == workBegins && known == "", op.kind == resultIsMet && known == op.result:
				return []any{known}
			case op.kind == workIsDone && known == "":
				return []any{op.result}
			}
			return nil
		},
	}
	return model.ToModel()
}()

// resultHistory has what several callers see of the results of some keys.
type resultHistory struct {
	opts []redlock.LockOption // of the callers

	mu   sync.Mutex
	ops  map[string][]porcupine.Operation
	runs int
	met  int
}

func (h *resultHistory) add(key string, client int, op resultOp, call, ret int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ops[key] = append(h.ops[key], porcupine.Operation{ClientId: client, Input: op, Call: call, Return: ret})
	switch op.kind {
	case workBegins:
		h.runs++
	case resultIsMet:
		h.met++
	}
}

// neverReturns is the return of an operation that may still be made at the end.
const neverReturns = int64(1) << 62

// once does the work of a key unless it is done.
func (h *resultHistory) once(l *redlock.Locker, key string, client int) {
	call := monotonic()
	lock, err := l.TryLock(context.Background(), key, append(h.opts, redlock.WithMaxHold(200*time.Millisecond))...)
	ret := monotonic()
	var done *redlock.DoneError
	if errors.As(err, &done) {
		h.add(key, client, resultOp{resultIsMet, string(done.Result)}, call, ret)
	}
	if err != nil {
		return
	}
	h.add(key, client, resultOp{kind: workBegins}, call, ret)
	time.Sleep(rand.N(3 * time.Millisecond))
	if rand.N(50) == 0 { // past its max hold
		<-lock.Context().Done()
	}
	result := fmt.Sprintf("%d %d", client, lock.Fence())
	call = monotonic()
	if err := lock.UnlockWith([]byte(result), time.Hour); err == nil {
		h.add(key, client, resultOp{workIsDone, result}, call, monotonic())
	} else {
		h.add(key, client, resultOp{maybeDone, result}, call, neverReturns)
	}
}

// TestHistoriesOfResults records what 24 callers of three Lockers see of results, while one master hangs, or two: the work of each
// key must look as if it was done once.
func TestHistoriesOfResults(t *testing.T) {
	t.Parallel()
	hangs := 40
	if testing.Short() {
		hangs = 15
	}
	h := recordResults(t, hangs, func(h *resultHistory) bool { return h.runs > 50 && h.met > 200 }, redlock.WithRecall())
	if key := judge(t, resultModel, h); key != "" {
		t.Errorf("the history of key %q is not that of work that is done once: see %s", key, picture(t, resultModel, h[key]))
	}
}

// TestHistoryOfIgnoredResults: the checker must reject what callers see that don't ask for results.
func TestHistoryOfIgnoredResults(t *testing.T) {
	t.Parallel()
	if h := recordResults(t, 1, func(h *resultHistory) bool { return h.runs > 300 }); judge(t, resultModel, h) == "" {
		t.Error("the checker takes it for work that is done once")
	}
}

// recordResults lets callers work until the masters have hung so many times, and until there is enough to judge.
func recordResults(t *testing.T, hangs int, enough func(*resultHistory) bool, opts ...redlock.LockOption) map[string][]porcupine.Operation {
	t.Helper()
	servers := redistest.Start(t, 3)
	h := &resultHistory{opts: slices.Clip(opts), ops: make(map[string][]porcupine.Operation)}
	stop := make(chan struct{})
	var group sync.WaitGroup
	for client := range 24 {
		if client%8 == 0 {
			l := newLocker(t, redistest.URLs(servers), redlock.WithTimeout(20*time.Millisecond), redlock.WithMaxTTL(time.Second), redlock.WithTTL(time.Second))
			for c := range 8 {
				group.Go(func() {
					for n := 0; ; n++ {
						select {
						case <-stop:
							return
						default:
							h.once(l, fmt.Sprint("job", (n/20+rand.IntN(5))), client+c)
						}
					}
				})
			}
		}
	}
	for range hangs {
		hanging := rand.Perm(3)[:1+rand.IntN(2)]
		for _, i := range hanging {
			servers[i].Pause()
		}
		time.Sleep(rand.N(60 * time.Millisecond))
		for _, i := range hanging {
			servers[i].Resume()
		}
		time.Sleep(rand.N(100 * time.Millisecond))
	}
	eventually(t, historyBound, "enough work", func() bool {
		h.mu.Lock()
		defer h.mu.Unlock()
		return enough(h)
	})
	close(stop)
	group.Wait()
	t.Logf("%d keys, %d runs, %d results met", len(h.ops), h.runs, h.met)
	return h.ops
}

// TestHistoryOfResultsModel gives the checker small histories of known worth.
func TestHistoryOfResultsModel(t *testing.T) {
	op := func(kind resultKind, result string, call, ret int64) porcupine.Operation {
		return porcupine.Operation{Input: resultOp{kind, result}, Call: call, Return: ret}
	}
	first := []porcupine.Operation{op(workBegins, "", 1, 2), op(workIsDone, "a", 5, 6)}
	unsure := []porcupine.Operation{op(workBegins, "", 1, 2), op(maybeDone, "a", 5, neverReturns)}
	for name, test := range map[string]struct {
		ops   []porcupine.Operation
		legal bool
	}{
		"met":                             {append(first, op(resultIsMet, "a", 7, 8)), true},
		"met while it is stored":          {append(first, op(resultIsMet, "a", 4, 8)), true},
		"met before it is done":           {append(first, op(resultIsMet, "a", 3, 4)), false},
		"begun again":                     {append(first, op(workBegins, "", 7, 8)), false},
		"begun again, by an early call":   {append(first, op(workBegins, "", 4, 8)), true},
		"another is met":                  {append(first, op(resultIsMet, "b", 7, 8)), false},
		"unsure, and begun again":         {append(unsure, op(workBegins, "", 7, 8), op(workIsDone, "b", 9, 10), op(resultIsMet, "b", 11, 12)), true},
		"unsure, and met":                 {append(unsure, op(resultIsMet, "a", 7, 8), op(resultIsMet, "a", 9, 10)), true},
		"unsure, met, and begun again":    {append(unsure, op(resultIsMet, "a", 7, 8), op(workBegins, "", 9, 10)), false},
		"unsure, and two are met in turn": {append(unsure, op(workBegins, "", 7, 8), op(workIsDone, "b", 9, 10), op(resultIsMet, "a", 11, 12)), false},
	} {
		if got := judge(t, resultModel, map[string][]porcupine.Operation{name: slices.Clone(test.ops)}) == ""; got != test.legal {
			t.Errorf("%s: legal %v, want %v", name, got, test.legal)
		}
	}
}
