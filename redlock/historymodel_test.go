package redlock_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
)

// A history is checked key by key against a lock with a fence. Operations that are known to have
// been made are in it: an acquire that never returned is not, because to take it and its release out
// of an order that is legal leaves one that is legal.
type historyOp struct {
	kind  opKind
	turn  int // from 1
	fence uint64
}

type opKind string

const (
	opAcquire opKind = "acquire"
	opUse     opKind = "use"
	opRelease opKind = "release"
)

// modelState is the lock's: whose turn it is, 0 for nobody's, and the largest fence so far.
type modelState struct {
	holder int
	fence  uint64
}

var (
	lockModel       = newLockModel(false) // mutual exclusion alone
	fencedLockModel = newLockModel(true)
)

func newLockModel(fenced bool) porcupine.Model {
	return porcupine.Model{
		Init: func() any { return modelState{} },
		Step: func(state, input, _ any) (bool, any) {
			s, op := state.(modelState), input.(historyOp)
			switch op.kind {
			case opAcquire:
				return s.holder == 0 && (!fenced || op.fence > s.fence), modelState{op.turn, op.fence}
			case opRelease:
				return s.holder == op.turn, modelState{0, s.fence}
			}
			return s.holder == op.turn, s
		},
		DescribeOperation: func(input, _ any) string {
			op := input.(historyOp)
			return fmt.Sprintf("%s, turn %d, fence %d", op.kind, op.turn, op.fence)
		},
		DescribeState: func(state any) string {
			s := state.(modelState)
			return fmt.Sprintf("held by turn %d, fence %d", s.holder, s.fence)
		},
	}
}

// operations are those of a turn in a history that ends at end. The turn's hold on the lock ends
// when Unlock is called, or with the validity if that is first: at some moment from then on it is
// released. But if Unlock says that the lock was held until now, the validity doesn't matter. A
// worker that was killed promises no more than the validity that it knew of.
func (r historyTurn) operations(turn, client int, end int64) []porcupine.Operation {
	op := func(kind opKind, call, ret int64) porcupine.Operation {
		return porcupine.Operation{ClientId: client, Input: historyOp{kind, turn, r.Fence}, Call: call, Return: ret}
	}
	ops := []porcupine.Operation{op(opAcquire, r.Call, r.Return)}
	if r.UseCall != 0 {
		ops = append(ops, op(opUse, r.UseCall, r.UseReturn))
	}
	released, known := r.Until, end
	switch {
	case r.Unlocked:
		released = r.UnlockCall
	case r.UnlockCall != 0:
		released = min(r.Until, r.UnlockCall)
	}
	if r.UnlockReturn != 0 {
		known = r.UnlockReturn
	}
	return append(ops, op(opRelease, released, max(known, released)))
}

// judge checks the history of each key, and gives a key whose history is illegal, or "". One that
// can't be decided in good time fails the test.
func judge(t *testing.T, model porcupine.Model, history map[string][]porcupine.Operation) (illegalKey string) {
	t.Helper()
	for key, ops := range history { // one at a time, for the memory that it takes
		switch result := porcupine.CheckOperationsTimeout(model, ops, time.Minute); result {
		case porcupine.Ok:
		case porcupine.Illegal:
			illegalKey = key
		default:
			t.Errorf("key %s, %d operations: the checker says %v after a minute", key, len(ops), result)
		}
	}
	return illegalKey
}

// picture writes what is illegal in a history as a web page that outlives the test, and gives its path.
func picture(t *testing.T, model porcupine.Model, ops []porcupine.Operation) string {
	t.Helper()
	_, info := porcupine.CheckOperationsVerbose(model, ops, time.Minute)
	dir, err := os.MkdirTemp("", "redlock-history-")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "history.html")
	if err := porcupine.VisualizePath(model, info, path); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestHistoryModel gives the checker small histories of known worth.
func TestHistoryModel(t *testing.T) {
	held := func(call, ret, unlock int64, fence uint64) historyTurn { // as it should be
		return historyTurn{Fence: fence, Call: call, Return: ret, Until: unlock + 100, UseCall: ret, UseReturn: unlock,
			UnlockCall: unlock, UnlockReturn: unlock + 1, Unlocked: true}
	}
	killed := historyTurn{Fence: 1, Call: 1, Return: 2, Until: 50}
	killedInUnlock := historyTurn{Fence: 1, Call: 1, Return: 2, Until: 50, UnlockCall: 10}
	paused := historyTurn{Fence: 1, Call: 1, Return: 2, Until: 50, UnlockCall: 90, UnlockReturn: 91, Lost: true}
	pausedInLock := historyTurn{Fence: 1, Call: 1, Return: 80, Until: 50, UnlockCall: 81, UnlockReturn: 82, Lost: true}
	heldPastValidity := historyTurn{Fence: 1, Call: 1, Return: 2, Until: 50, UnlockCall: 60, UnlockReturn: 61, Unlocked: true}
	usedAfterLoss := paused
	usedAfterLoss.UseCall, usedAfterLoss.UseReturn = 85, 86

	for name, test := range map[string]struct {
		turns []historyTurn
		want  porcupine.CheckResult
	}{
		"one after the other":                     {[]historyTurn{held(1, 2, 5, 1), held(6, 7, 8, 2)}, porcupine.Ok},
		"the second waits":                        {[]historyTurn{held(1, 2, 5, 1), held(2, 6, 8, 2)}, porcupine.Ok},
		"got before Unlock returns":               {[]historyTurn{held(1, 2, 10, 1), held(3, 10, 20, 2)}, porcupine.Ok},
		"both waited, the later call first":       {[]historyTurn{held(1, 30, 40, 2), held(2, 10, 20, 1)}, porcupine.Ok},
		"overlap":                                 {[]historyTurn{held(1, 2, 10, 1), held(3, 9, 20, 2)}, porcupine.Illegal},
		"one inside the other":                    {[]historyTurn{held(1, 2, 20, 1), held(5, 6, 7, 2)}, porcupine.Illegal},
		"fence falls":                             {[]historyTurn{held(1, 2, 5, 2), held(6, 7, 8, 1)}, porcupine.Illegal},
		"fence stays":                             {[]historyTurn{held(1, 2, 5, 1), held(6, 7, 8, 1)}, porcupine.Illegal},
		"after a killed holder's validity":        {[]historyTurn{killed, held(3, 51, 60, 2)}, porcupine.Ok},
		"before a killed holder's validity ends":  {[]historyTurn{killed, held(3, 49, 60, 2)}, porcupine.Illegal},
		"after a holder killed in Unlock":         {[]historyTurn{killedInUnlock, held(3, 11, 60, 2)}, porcupine.Ok},
		"while a paused holder believes":          {[]historyTurn{paused, held(3, 49, 60, 2)}, porcupine.Illegal},
		"after a paused holder's validity":        {[]historyTurn{paused, held(3, 51, 60, 2)}, porcupine.Ok},
		"fence of a paused holder":                {[]historyTurn{paused, held(3, 51, 60, 1)}, porcupine.Illegal},
		"a paused holder believes too long":       {[]historyTurn{usedAfterLoss, held(3, 51, 60, 2)}, porcupine.Illegal},
		"paused before Lock returned":             {[]historyTurn{pausedInLock, held(3, 60, 70, 2)}, porcupine.Ok},
		"Unlock says held, another got it before": {[]historyTurn{heldPastValidity, held(3, 55, 70, 2)}, porcupine.Illegal},
	} {
		t.Run(name, func(t *testing.T) {
			var ops []porcupine.Operation
			for i, turn := range test.turns {
				ops = append(ops, turn.operations(i+1, i, 1000)...)
			}
			if got := porcupine.CheckOperationsTimeout(fencedLockModel, ops, time.Minute); got != test.want {
				t.Errorf("%v, want %v", got, test.want)
			}
		})
	}
}
