// Package redlock is a distributed lock: of all processes that share the same Redis servers, one at a time holds the
// lock on a key. It is the Redlock algorithm: a lock is held when a majority of independent Redis masters has granted
// it, so it works while a minority of them is down or hangs.
//
//	locker, err := redlock.Open([]string{"redis://10.0.0.1", "redis://10.0.0.2", "redis://10.0.0.3"})
//	if err != nil {
//		return err
//	}
//	defer locker.Close()
//
//	err = locker.Do(ctx, "invoices", func(ctx context.Context, lock *redlock.Lock) error {
//		return sendInvoices(ctx) // no other process does this now
//	})
//
// One Locker serves a whole process, for any number of keys. A key is any text that is not empty.
//
// # What it guarantees
//
// While one holder has the lock on a key, no other has it, as long as the clocks of all machines run at about the same
// speed (1 % of the TTL and 2 ms are allowed for), and holders stop when their context ends. A lock is a lease: it is
// renewed while it is held, however long that is, and the key of a process that dies is free after the TTL, 10 s by
// default. If it can't be renewed, the context of the lock ends no later than the lease, whatever the masters do.
//
// A process that is paused for longer than its lease may write once more before it notices: if that would do harm, let
// the store check the fencing token. The lock keeps two callers from working at the same time, and not from doing the
// same work one after the other: for that the masters can remember its result. docs/guarantees.md has all conditions.
//
// # Waiting
//
// Lock and Do wait for the key, in the order in which the calls came: until their context ends, or for as long as
// WithWait allows. TryLock and TryDo do not wait. LockAll takes several keys at once, or none of them.
//
//	lock, err := locker.Lock(ctx, "order:42", redlock.WithWait(2*time.Second))
//	switch {
//	case errors.Is(err, redlock.ErrHeld): // another holder had it all the time
//	case errors.Is(err, redlock.ErrNoQuorum): // too few masters answered
//	case err != nil: // ctx ended at once, the Locker is closed, or an option is wrong
//	}
//
// Locks are not reentrant: a call with the context of a lock that has its key, or with a child of that context, fails at
// once with ErrHeldByCaller, because it would wait for itself. With another context it does wait.
//
// WithWait and the context given to Lock bound the wait only. Work under a lock stops with the context of the lock:
// Do gives it to its function, and Lock.Context and Lock.WithContext return it.
//
//	defer lock.Unlock()
//	ctx, cancel := lock.WithContext(ctx) // ends with ctx, and when the lock is lost
//	defer cancel()
//
// # Fencing
//
// Each lock has a fencing token, Lock.Fence: a number that is larger than the tokens of all locks on the key before it,
// over all processes. Store it with the data, and refuse a write whose token is smaller than the stored one:
//
//	UPDATE orders SET state = 'paid', fence = $1 WHERE id = $2 AND fence <= $1
//
// If no row matches, a later holder has written already, and this one must give up.
//
// # Work that is done once
//
// Once runs the function, or returns the result of an earlier run, in whatever process, which the masters remember.
//
//	receipt, err := locker.Once(ctx, "payment:42", 24*time.Hour, func(ctx context.Context, lock *redlock.Lock) ([]byte, error) {
//		return pay(ctx) // after an error, the next call tries again
//	})
//
// The work runs again only if its process dies before the result is stored, or if so many masters lose their data that a
// majority may not know it any more. OncePer has work succeed once per period, such as a job that all machines have in
// their schedules. UnlockWith and WithRecall, or UnlockDone and WithOncePer, are for work that is no function.
//
// # Errors
//
// The errors are values such as ErrHeld, for errors.Is. A *HeldError says when to try again; a *QuorumError has
// a *MasterError for each master that failed. Unlock, and so Do, returns an error that matches ErrLost
// if the lock was lost before, or ErrClosed: then the work may have overlapped with another holder's.
//
// Close ends all waits, frees all locks and ends their contexts with ErrClosed: let the work end first.
//
// # Testing
//
// Package redlocktest has Lockers for tests of code that locks. They need no server, lose their locks and their masters as
// the test wants, and end with it.
//
//	locker := redlocktest.New(t)
//
// # Masters
//
// Three or five independent servers survive the loss of one or two; a Redis Cluster counts as one. Replicas and groups of
// Sentinel cannot be masters, because a replica that is promoted may lack the newest locks. A server that has just started
// has no vote for 11 s, because it may have forgotten locks: WithRestartGuard(0) turns that off, for development.
//
// All processes that share locks must name the same masters, and have the same WithPrefix and WithMaxTTL.
package redlock
