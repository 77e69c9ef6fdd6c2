//go:build linux

// Command stall runs a command while each processor stands still half of the time, for half to one and a half of a
// pause at once, as those of a virtual machine do whose neighbors are busy. It needs the right to real-time scheduling.
package main

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

func main() {
	code, err := run(os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, "stall:", err)
	}
	os.Exit(code)
}

func run(args []string) (code int, err error) {
	if len(args) < 2 {
		return 2, errors.New("usage: stall <pause> <command> [arguments]")
	}
	pause, err := time.ParseDuration(args[0])
	if err != nil {
		return 2, fmt.Errorf("pause: %w", err)
	}
	cpus := runtime.NumCPU()
	runtime.GOMAXPROCS(cpus + 2) // so that a thread that has slept needn't wait for another
	ready := make(chan error)
	for cpu := range cpus {
		go stall(cpu, pause, ready)
	}
	for range cpus {
		if err := <-ready; err != nil {
			return 1, fmt.Errorf("real-time scheduling, which needs root: %w", err)
		}
	}
	cmd := exec.Command(args[1], args[2:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	err = cmd.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return max(1, exit.ExitCode()), nil // -1 if a signal ended it
	} else if err != nil {
		return 1, err
	}
	return 0, nil
}

// stall takes a processor away from all others, and gives it back, until the process ends.
func stall(cpu int, pause time.Duration, ready chan<- error) {
	runtime.LockOSThread()
	var only unix.CPUSet
	only.Set(cpu)
	err := unix.SchedSetaffinity(0, &only)
	if err == nil {
		// What this thread should start must not inherit it.
		err = unix.SchedSetAttr(0, &unix.SchedAttr{Policy: unix.SCHED_FIFO, Priority: 50, Flags: unix.SCHED_FLAG_RESET_ON_FORK}, 0)
	}
	ready <- err
	for err == nil {
		each := pause/2 + rand.N(pause)
		for start := time.Now(); time.Since(start) < each; {
		}
		rest := unix.NsecToTimespec(int64(each))
		_ = unix.Nanosleep(&rest, nil) // the thread itself: a timer of Go's would wait for other threads
	}
}
