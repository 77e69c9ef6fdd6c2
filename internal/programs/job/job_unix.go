//go:build unix

// Package job runs a command for as long as a lock is held, and not longer, whatever happens to this process. It is for a process
// that does nothing else: it waits for all children, and passes its signals on.
//
// Three processes take part: this one, which renews the lock; the command; and between them the guard, in the command's process group,
// which ends that when the lease does. So the command is gone in time although this process is stopped, and at once if it is killed.
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

// Lease is what a job needs to know of its lock. A *redlock.Lock is one.
type Lease interface {
	Context() context.Context // ends when the lock is lost; its cause is why
	Until() time.Time         // before it nobody else has the lock; it moves on while the lease is renewed
}

// Job is a command that runs under a lock.
type Job struct {
	Command   []string
	Env       []string      // in addition to this process's own
	KillAfter time.Duration // between TERM and KILL: so long before the lease ends, the command is terminated

	signals *Signals
	lease   Lease
	guard   *guard
	pid     int
	term    *terminal
}

// Result is how a command has ended.
type Result struct {
	Code       int            // its exit code, or 128 and the signal
	Signal     syscall.Signal // that has ended it; 0 if it has exited
	Lost       error          // why the lock was lost while it ran; nil if it wasn't
	LeftBehind bool           // whether it has left processes that still run
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

// Run runs the command, and returns when it has ended. It must be called on the thread of main: when that ends, the command is killed.
// The lock is still to be released.
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

// environment has each variable once: of two, programs differ on which counts.
func (j *Job) environment() []string {
	return append(slices.DeleteFunc(os.Environ(), func(variable string) bool {
		name, _, _ := strings.Cut(variable, "=")
		return slices.ContainsFunc(j.Env, func(own string) bool { return strings.HasPrefix(own, name+"=") })
	}), j.Env...)
}

// watch tells the guard how long the lease lasts, until the command has ended or the lock is lost. It returns why it was lost.
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

// tick is how often the guard is told of renewals. The shortest lease that makes sense lasts for many of them.
const tick = 50 * time.Millisecond

// ErrLate is why a command ends whose lease was not renewed, a while before the lease does.
var ErrLate = errors.New("the lease could not be renewed in time")

// wait waits until the command has ended. What else has ended meanwhile was left behind by the command, unless it is the guard: without
// it nobody keeps the command from outliving the lock.
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

// stays reports whether something is still so after a moment: what a command has started may end just after itself.
func stays(so func() bool) bool {
	for range 20 {
		if !so() {
			return false
		}
		time.Sleep(5 * time.Millisecond)
	}
	return so()
}
