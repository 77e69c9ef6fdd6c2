//go:build unix

package job

import (
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"
)

// terminal is the terminal on which this process was started, which the command may need. The command is in a process group of its own, and only the
// foreground group may read from the terminal. So the command's group becomes the foreground group when the command first tries to read. It doesn't
// earlier, so that the other programs of a pipeline keep the terminal. The zero value is no terminal.
type terminal struct {
	file    *os.File
	own     int // the group of this process
	group   int // the group of the command
	signals *Signals
}

func openTerminal(group int, signals *Signals) *terminal {
	file, err := os.OpenFile("/dev/tty", os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		return new(terminal)
	}
	signal.Ignore(syscall.SIGTTOU) // otherwise this process could not take the terminal back; the command has started before, and doesn't ignore it
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

// move makes a group (to) the foreground group in place of another one (from). It reports false if that one isn't the foreground group.
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
		return // somebody has stopped the command alone: the lock is held meanwhile
	case sig != syscall.SIGTSTP && t.move(t.own, t.group):
		_ = syscall.Kill(-t.group, syscall.SIGCONT)
		return
	}
	had := t.move(t.group, t.own)
	select {
	case <-t.signals.continued: // forget an old SIGCONT
	default:
	}
	_ = syscall.Kill(os.Getpid(), syscall.SIGSTOP) // the shell shows the job as stopped; the guard ends it if that lasts longer than the lease
	<-t.signals.continued
	if had {
		t.move(t.own, t.group)
	}
	_ = syscall.Kill(-t.group, syscall.SIGCONT)
}
