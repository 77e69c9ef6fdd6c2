//go:build unix

// Package job runs a command for as long as a lock is held, and not longer, whatever happens to this process. The package is for a process that does
// nothing else: it waits for all children, and passes its signals on to the command.
//
// Three processes take part. This process renews the lock. The command runs in a process group of its own. The guard, in the same group, ends the
// group when the lease ends. So the command ends in time even if this process is stopped, and at once if this process is killed.
package job

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"
)

// Lease has the facts about its lock that a job needs. A *redlock.Lock is a Lease.
type Lease interface {
	Context() context.Context // ends when the lock is lost, with the reason as its cause
	Until() time.Time         // nobody else has the lock before this time, which moves on when the lease is renewed
}

// Job is a command that runs under a lock.
type Job struct {
	Command   []string
	Env       []string      // in addition to this process's own
	KillAfter time.Duration // the time between TERM and KILL: the command gets TERM this long before the lease ends

	signals *Signals
	lease   Lease
	guard   *guard
	pid     int
	term    *terminal
}

// Result is how a command has ended.
type Result struct {
	Code       int            // its exit code, or 128 and the signal
	Signal     syscall.Signal // the signal that has ended the command; 0 if the command has exited
	Lost       error          // why the lock was lost while the command ran; nil if it was not lost
	LeftBehind bool           // whether the command has left processes that still run
}

// The exit codes for a command that can't be started, as shells have them.
const (
	codeNotFound    = 127
	codeNotExecuted = 126
)

// StartError is the error of a command that can't be started.
type StartError struct {
	Code int // for the exit code
	Err  error
}

func (e *StartError) Error() string { return e.Err.Error() }

// Unwrap returns the reason.
func (e *StartError) Unwrap() error { return e.Err }

// Run runs the command, and returns when the command has ended. Call it on the main thread, because the kernel kills the command when the thread that
// has started it ends. Run doesn't release the lock.
func (j *Job) Run(lease Lease, signals *Signals) (Result, error) {
	j.lease, j.signals = lease, signals
	path, err := exec.LookPath(j.Command[0])
	if err != nil {
		return Result{}, startError(j.Command[0], err)
	}
	adopt()
	if j.guard, err = startGuard(); err != nil {
		return Result{}, err
	}
	j.guard.bound(lease.Until().Add(-j.KillAfter), lease.Until())
	group := j.guard.pid
	sys := &syscall.SysProcAttr{Setpgid: true, Pgid: group}
	dieWithParent(sys)
	j.pid, err = syscall.ForkExec(path, j.Command, &syscall.ProcAttr{Env: j.environment(), Files: []uintptr{0, 1, 2}, Sys: sys})
	if err != nil {
		j.guard.dismiss()
		_, _ = syscall.Wait4(group, nil, 0, nil)
		return Result{}, startError(path, err)
	}
	j.term = openTerminal(group, signals)
	defer j.term.close()
	signals.passTo(group)
	defer signals.passTo(0)
	stop, lost := make(chan struct{}), make(chan error)
	go func() { lost <- j.watch(stop) }()
	status := j.wait()
	close(stop)
	result := resultOf(status)
	result.Lost = <-lost
	j.guard.dismiss()
	_, _ = wait4(group, 0)
	result.LeftBehind = stays(func() bool { return leftBehind(group) })
	return result, nil
}

func startError(name string, err error) error {
	code := codeNotExecuted
	if errors.Is(err, exec.ErrNotFound) || errors.Is(err, os.ErrNotExist) {
		code = codeNotFound
	}
	var failed *exec.Error
	if errors.As(err, &failed) {
		err = failed.Err
	}
	return &StartError{Code: code, Err: fmt.Errorf("the command %s can't be started: %w", name, err)}
}

// environment returns each variable once, because programs differ on which of two values counts.
func (j *Job) environment() []string {
	return append(slices.DeleteFunc(os.Environ(), func(variable string) bool {
		name, _, _ := strings.Cut(variable, "=")
		return slices.ContainsFunc(j.Env, func(own string) bool { return strings.HasPrefix(own, name+"=") })
	}), j.Env...)
}

// watch tells the guard how long the lease lasts, until the command has ended or the lock is lost. It returns the reason if the lock was lost.
func (j *Job) watch(stop <-chan struct{}) error {
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	var told time.Time
	for {
		until := j.lease.Until()
		if !until.Equal(told) {
			j.guard.bound(until.Add(-j.KillAfter), until)
			told = until
		}
		select {
		case <-j.lease.Context().Done():
			kill := time.Now().Add(j.KillAfter)
			if until.Before(kill) {
				kill = until
			}
			j.guard.bound(time.Now(), kill)
			return context.Cause(j.lease.Context())
		case <-stop:
			if ctx := j.lease.Context(); ctx.Err() != nil {
				return context.Cause(ctx)
			}
			if !time.Now().Before(j.lease.Until().Add(-j.KillAfter)) {
				return ErrLate
			}
			return nil
		case <-ticker.C:
		}
	}
}

// tick is how often watch looks for a renewal of which the guard must be told. It is a small part of the shortest lease that makes sense.
const tick = 50 * time.Millisecond

// ErrLate is the reason if the command was ended, or has ended, so shortly before the end of a lease that the lease should have been renewed.
var ErrLate = errors.New("the lease could not be renewed in time")

// wait waits until the command has ended. It also collects processes that the command has left behind. If the guard ends first, wait kills the group,
// because nothing else would keep the command from outliving the lock.
func (j *Job) wait() syscall.WaitStatus {
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, syscall.WUNTRACED, nil)
		switch {
		case err == syscall.EINTR:
		case err != nil:
			return syscall.WaitStatus(codeNotExecuted << 8) // nobody else waits for children of this process
		case pid == j.pid && status.Stopped():
			j.term.stopped(status.StopSignal())
		case pid == j.pid:
			return status
		case pid == j.guard.pid && !status.Stopped():
			_ = syscall.Kill(-j.guard.pid, syscall.SIGKILL)
		}
	}
}

// wait4 waits for one process.
func wait4(pid, options int) (status syscall.WaitStatus, err error) {
	for {
		if _, err = syscall.Wait4(pid, &status, options, nil); err != syscall.EINTR {
			return status, err
		}
	}
}

func resultOf(status syscall.WaitStatus) Result {
	if status.Signaled() {
		return Result{Code: 128 + int(status.Signal()), Signal: status.Signal()}
	}
	return Result{Code: status.ExitStatus()}
}

// stays reports whether a condition still holds after a moment, because processes that the command has started may end shortly after the command.
func stays(so func() bool) bool {
	for range 20 {
		if !so() {
			return false
		}
		time.Sleep(5 * time.Millisecond)
	}
	return so()
}
