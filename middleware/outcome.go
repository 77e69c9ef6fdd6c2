package middleware

// Outcome is what became of a request's lock.
type Outcome string

// The outcomes of requests that were served.
const (
	OutcomeAcquired Outcome = "acquired" // the request runs, or ran, with its lock
	OutcomeReplayed Outcome = "replayed" // it was answered with the remembered answer, without being served
	OutcomeDryRun   Outcome = "dry_run"  // it would have got its lock at once, as far as its rule can know
)

// The outcomes of requests that could not be served with their lock.
const (
	OutcomeHeld       Outcome = "held"        // another request has the lock
	OutcomeNoQuorum   Outcome = "no_quorum"   // too few masters answered; refused, or served without a lock
	OutcomeMissingKey Outcome = "missing_key" // a part of the key is missing; refused, or served without a lock
	OutcomeBadKey     Outcome = "bad_key"     // no certain key can be made of the request
	OutcomeDuplicate  Outcome = "duplicate"   // the same delivery is waiting or running
	OutcomeMismatch   Outcome = "mismatch"    // its ID belongs to another request, whose answer is remembered
	OutcomeUnreadable Outcome = "unreadable"  // it is done, as far as is known, but its answer can't be read now
	OutcomeMissingID  Outcome = "missing_id"  // the request lacks the ID that it must have
	OutcomeLost       Outcome = "lost"        // the lease ended while the handler ran
	OutcomeCanceled   Outcome = "canceled"    // the client left while the request waited
	OutcomeStopping   Outcome = "stopping"    // the request would have to wait, and the server is about to stop
	OutcomeFailed     Outcome = "failed"      // the Locker is closed, or can't take such a lock

	OutcomeBadSignature Outcome = "bad_signature" // the signature is missing, wrong or old
	OutcomeUpgrade      Outcome = "upgrade"       // the request asks for another protocol, such as WebSocket

	OutcomeBodyTooLarge    Outcome = "body_too_large"   // the body is larger than max_body
	OutcomeUnsupportedBody Outcome = "unsupported_body" // the body is neither JSON nor a form, or it is encoded
	OutcomeBodyTimeout     Outcome = "body_timeout"     // the body did not arrive in time
	OutcomeBodyBudget      Outcome = "body_budget"      // there were too many bodies at once
)

// titles are what the answers to refused requests say.
var titles = map[Outcome]string{
	OutcomeHeld:       "Another request with the same key is in progress",
	OutcomeNoQuorum:   "The lock service can't be reached",
	OutcomeMissingKey: "The request lacks a value that its lock key is made of",
	OutcomeBadKey:     "No certain lock key can be made of the request",
	OutcomeDuplicate:  "The same delivery is in progress",
	OutcomeMismatch:   "The ID was used for another request",
	OutcomeUnreadable: "The request was served before, and its answer can't be read now",
	OutcomeMissingID:  "The request lacks an ID",
	OutcomeLost:       "The lock was lost while the request ran; its outcome is unknown",
	OutcomeCanceled:   "The client left",
	OutcomeStopping:   "The server is about to stop, and the lock is held",
	OutcomeFailed:     "The lock could not be taken",

	OutcomeBadSignature: "The request is not signed as it should be",
	OutcomeUpgrade:      "Requests for another protocol are not served here",

	OutcomeBodyTooLarge:    "The body is too large to make a lock key of it",
	OutcomeUnsupportedBody: "No lock key can be made of such a body",
	OutcomeBodyTimeout:     "The body did not arrive in time",
	OutcomeBodyBudget:      "Too many bodies are being read",
}
