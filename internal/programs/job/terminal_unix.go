//go:build unix

package job

import (
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"
)

// terminal is the terminal that this process was started on, as far as it is to be shared with the command. The command is in a process group
// of its own, which may not read from it unless it is the foreground group: it becomes that when it first tries to read, and not before,
// so that in a pipeline the others keep the terminal. The zero value is no terminal.
type terminal struct {
	file    *os.File
	own     int // group of this process
	group   int // of the command
	signals *Signals
}

func openTerminal(group int, signals *Signals) *terminal {
	file, err := os.OpenFile("/dev/tty", os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		return new(terminal)
	}
	signal.Ignore(syscall.SIGTTOU) // or this process could not take the terminal back; the command has been started, and doesn't inherit it
	return &terminal{file: file, own: syscall.Getpgrp(), group: group, signals: signals}
}

// close takes the terminal back.
func (t *terminal) close() {
	if t.file == nil {
		return
	}
	t.move(t.group, t.own)
	_ = t.file.Close()
}

// move makes one group the foreground group in place of another, and reports whether it was that.
func (t *terminal) move(from, to int) bool {
	now, err := unix.IoctlGetInt(int(t.file.Fd()), unix.TIOCGPGRP)
	return err == nil && now == from && unix.IoctlSetPointerInt(int(t.file.Fd()), unix.TIOCSPGRP, to) == nil
}

// stopped is called when the command was stopped.
func (t *terminal) stopped(sig syscall.Signal) {
	switch {
	case t.file == nil:
		return
	case sig != syscall.SIGTTIN && sig != syscall.SIGTTOU && sig != syscall.SIGTSTP:
		return // by somebody who has stopped the command alone: the lock is held meanwhile
	case sig != syscall.SIGTSTP && t.move(t.own, t.group):
		_ = syscall.Kill(-t.group, syscall.SIGCONT)
		return
	}
	had := t.move(t.group, t.own)
	select {
	case <-t.signals.continued: // an old one
	default:
	}
	_ = syscall.Kill(os.Getpid(), syscall.SIGSTOP) // the shell shows the job as stopped; the guard ends it if that lasts longer than the lease
	<-t.signals.continued
	if had {
		t.move(t.own, t.group)
	}
	_ = syscall.Kill(-t.group, syscall.SIGCONT)
}
