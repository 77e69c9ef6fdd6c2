package middleware

import (
	"context"
	"errors"
	"fmt"

	"github.com/caddy-redlock/caddy-redlock/middleware/internal/fold"
	"github.com/caddy-redlock/caddy-redlock/middleware/internal/remembered"
	"github.com/caddy-redlock/caddy-redlock/middleware/internal/signature"
	"github.com/caddy-redlock/caddy-redlock/redlock"
)

// detailOf returns why a request has this outcome, in words that its client may see. They name a placeholder at most: never a
// key, a value of the request or a master. An error of which that is not certain is not quoted.
func detailOf(outcome Outcome, err error) string {
	switch outcome {
	case OutcomeAcquired, OutcomeReplayed, OutcomeDryRun:
		return ""
	case OutcomeHeld:
		return detailOfHeld(err)
	case OutcomeNoQuorum:
		return detailOfNoQuorum(err)
	case OutcomeLost:
		return detailOfLost(err)
	case OutcomeDuplicate:
		return sameDelivery
	case OutcomeUnreadable:
		return "some master remembers a response, which can't be read now"
	case OutcomeMismatch:
		return errMismatch.Error()
	case OutcomeStopping:
		return errStopping.Error()
	case OutcomeCanceled:
		return "the client left before the request had its lock"
	case OutcomeFailed:
		if errors.Is(err, redlock.ErrClosed) {
			return "the server has closed its locks"
		}
		if errors.Is(err, remembered.ErrUnreadable) {
			return "the remembered response can't be read"
		}
		var reason *refusalReason
		if errors.As(err, &reason) {
			return reason.text
		}
		return "the lock can't be asked for"
	}
	return detailOfRequest(err)
}

// detailOfRequest is detailOf for a request that was refused before its lock was asked for.
func detailOfRequest(err error) string {
	var reason *refusalReason
	var unsigned signature.Error
	var value fold.Error
	why := "no certain key can be made of the request"
	switch {
	case errors.As(err, &reason):
		why = reason.text
	case errors.As(err, &unsigned):
		return string(unsigned)
	case errors.As(err, &value):
		why = string(value)
	case errors.Is(err, context.Canceled):
		why = "the client left before its body was read"
	}
	var part *KeyError
	switch {
	case errors.As(err, &part):
		return "key part {" + part.Placeholder + "}: " + why
	case value != "":
		return "key: " + why
	}
	return why
}

func detailOfHeld(err error) string {
	var held *redlock.HeldError
	slots := 1
	if errors.As(err, &held) {
		slots = held.Slots
	}
	switch {
	case errors.Is(err, redlock.ErrTooManyWaiters):
		return "too many requests are waiting for the lock"
	case slots > 1 && errors.Is(err, context.DeadlineExceeded):
		return fmt.Sprintf("all %d slots were taken for the whole wait", slots)
	case slots > 1:
		return fmt.Sprintf("all %d slots are taken", slots)
	case errors.Is(err, context.DeadlineExceeded):
		return "another request held the lock for the whole wait"
	}
	return "another request holds the lock"
}

func detailOfNoQuorum(err error) string {
	var quorum *redlock.QuorumError
	switch {
	case !errors.As(err, &quorum):
		return "the wait was over before the masters could answer"
	case quorum.Total == 0:
		return "other processes use other masters than this one"
	case quorum.RetryAfter > 0:
		return "too few masters may vote: some have just started"
	case quorum.Total-len(quorum.Masters) < quorum.Quorum:
		return "too few masters are usable"
	case quorum.Answered < quorum.Quorum:
		return "too few masters answered in time"
	}
	return "a majority of the masters answered, but too late, or not to all"
}

func detailOfLost(err error) string {
	switch {
	case errors.Is(err, redlock.ErrMaxHold):
		return "the request held its lock for max_hold"
	case errors.Is(err, redlock.ErrForced):
		return "the lock was released by force"
	case errors.Is(err, redlock.ErrClosed):
		return "the server has closed its locks"
	}
	return "the lease could not be renewed"
}
