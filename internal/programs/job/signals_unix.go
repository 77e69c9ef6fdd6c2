//go:build unix

package job

import (
	"os"
	"os/signal"
	"sync"
	"syscall"
)

// passed are the signals that are for the command. TSTP is what Ctrl-Z sends while the command has not taken the terminal.
var passed = []os.Signal{
	syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGALRM,
	syscall.SIGWINCH, syscall.SIGTSTP, syscall.SIGCONT,
}

// Signals are the signals that this process gets. They end the process before the command runs, and are passed on to the command afterwards.
type Signals struct {
	caught    chan os.Signal
	continued chan struct{} // SIGCONT has come
	done      chan struct{}

	mu    sync.Mutex
	group int            // the group of the command; 0 while no command runs
	ended syscall.Signal // the signal that has come while no command ran; 0 for none
	end   func()
}

// Catch begins to catch signals. While no command runs, a signal that would end this process calls end. Close must be called.
func Catch(end func()) *Signals {
	s := &Signals{caught: make(chan os.Signal, 16), continued: make(chan struct{}, 1), done: make(chan struct{}), end: end}
	for _, sig := range passed {
		if !signal.Ignored(sig) { // as with nohup: the command ignores it, too
			signal.Notify(s.caught, sig)
		}
	}
	go s.run()
	return s
}

// Close gives the signals back.
func (s *Signals) Close() {
	signal.Stop(s.caught)
	close(s.caught)
	<-s.done
}

// Ended returns the signal that ended the wait for the lock, or 0.
func (s *Signals) Ended() syscall.Signal {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ended
}

func (s *Signals) run() {
	defer close(s.done)
	for caught := range s.caught {
		sig := caught.(syscall.Signal)
		if sig == syscall.SIGCONT {
			select {
			case s.continued <- struct{}{}:
			default:
			}
		}
		s.mu.Lock()
		switch {
		case s.group != 0:
			_ = syscall.Kill(-s.group, sig)
		case sig == syscall.SIGTSTP:
			_ = syscall.Kill(os.Getpid(), syscall.SIGSTOP)
		case sig != syscall.SIGCONT && sig != syscall.SIGWINCH && s.ended == 0:
			s.ended = sig
			s.end()
		}
		s.mu.Unlock()
	}
}

// passTo makes signals go to this group from now on, or to no group if it is 0. A signal that came just before goes to the group, too.
func (s *Signals) passTo(group int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.group = group
	if group != 0 && s.ended != 0 {
		_ = syscall.Kill(-group, s.ended)
	}
}

// Die ends this process by a signal, so that its parent sees by which signal the command has ended. Die returns if that isn't possible, as in the
// first process of a container, which can't end itself by a signal.
func Die(sig syscall.Signal) {
	if os.Getpid() == 1 {
		return
	}
	switch sig {
	case syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP:
		signal.Reset(sig)
		_ = syscall.Kill(os.Getpid(), sig)
		select {} // until the signal has arrived
	}
}
