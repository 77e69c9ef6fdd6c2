//go:build unix

package job

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// GuardName is the name, argv[0], under which the program runs as the guard of a job. It differs from the name of the program, so that the guard
// stays if somebody ends all processes with the program's name.
const GuardName = "lock-guard"

// An order tells the guard when to end its process group. Its times are those of guardNow. Only the latest order counts.
type order struct{ terminate, kill int64 }

const orderSize = 16

// farewell is the order to end, and to leave the group alone. If the orders end without it, the process that holds the lock has ended, and the guard
// kills the group.
var farewell = order{-1, -1}

func (o order) bytes() []byte {
	return binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(nil, uint64(o.terminate)), uint64(o.kill))
}

func orderOf(b []byte) order {
	return order{int64(binary.LittleEndian.Uint64(b)), int64(binary.LittleEndian.Uint64(b[8:]))}
}

// guardNow returns the time on the clock that the guard and the process that holds the lock share.
func guardNow() int64 {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		panic(err) // every system has this clock
	}
	return now.Nano()
}

// Guard is all that the guard does. The guard is a process in the command's group, and ends the group when the lease ends, even if the process that
// holds the lock is stopped or was killed before. Guard returns the exit code.
func Guard() int {
	signal.Ignore() // signals to the group are for the command
	if _, err := os.Stdout.Write([]byte{1}); err != nil {
		return 1
	}
	_ = os.Stdout.Close()
	var terminated bool
	orders := reader{fd: int(os.Stdin.Fd())}
	for {
		current, err := orders.latest()
		now := guardNow()
		switch {
		case current == farewell:
			return 0
		case err != nil, orders.any && now >= current.kill:
			_ = syscall.Kill(0, syscall.SIGKILL) // this process, too
		case orders.any && now >= current.terminate:
			if !terminated {
				terminated = true
				_ = syscall.Kill(0, syscall.SIGTERM)
				_ = syscall.Kill(0, syscall.SIGCONT) // a stopped process gets SIGTERM only after SIGCONT
			}
			orders.wait(current.kill - now)
		case orders.any:
			orders.wait(current.terminate - now)
		default:
			orders.wait(int64(time.Hour))
		}
	}
}

// reader reads orders from a pipe without waiting for more than there are.
type reader struct {
	fd    int
	rest  []byte
	last  order
	any   bool
	ended error
}

// wait waits for the next order, for at most this time.
func (r *reader) wait(nanoseconds int64) {
	const millisecond = int64(time.Millisecond)
	wait := min(max(0, (nanoseconds+millisecond-1)/millisecond), int64(time.Hour)/millisecond)
	_, _ = unix.Poll([]unix.PollFd{{Fd: int32(r.fd), Events: unix.POLLIN}}, int(wait))
}

// latest returns the last order that has come. If this process was stopped, an order that has waited meanwhile counts before the guard looks at the
// clock.
func (r *reader) latest() (order, error) {
	for r.ended == nil {
		poll := []unix.PollFd{{Fd: int32(r.fd), Events: unix.POLLIN}}
		if n, err := unix.Poll(poll, 0); n == 0 && err == nil {
			break
		} else if errors.Is(err, unix.EINTR) {
			continue
		}
		var buffer [64 * orderSize]byte
		n, err := unix.Read(r.fd, buffer[:])
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			r.ended = err
		case n == 0:
			r.ended = io.EOF
		}
		for r.rest = append(r.rest, buffer[:max(0, n)]...); len(r.rest) >= orderSize; r.rest = r.rest[orderSize:] {
			r.last, r.any = orderOf(r.rest), true
		}
	}
	return r.last, r.ended
}

// guard is the guard as the process that holds the lock sees it.
type guard struct {
	pid    int
	orders *os.File
}

// startGuard starts the guard as the first process of a new group, and waits until it is ready.
func startGuard() (*guard, error) {
	name, err := executable()
	if err != nil {
		return nil, err
	}
	ordersOut, ordersIn, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	readyOut, readyIn, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(err, ordersOut.Close(), ordersIn.Close())
	}
	defer func() { _, _ = readyOut.Close(), ordersOut.Close() }()
	// The guard keeps the standard error of this process, so that a crash of the guard is seen.
	pid, err := syscall.ForkExec(name, []string{GuardName}, &syscall.ProcAttr{
		Env:   os.Environ(),
		Files: []uintptr{ordersOut.Fd(), readyIn.Fd(), 2},
		Sys:   &syscall.SysProcAttr{Setpgid: true},
	})
	_ = readyIn.Close()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("the guard of the command can't be started: %w", err), ordersIn.Close())
	}
	if _, err := readyOut.Read(make([]byte, 1)); err != nil {
		_ = ordersIn.Close()
		_ = syscall.Kill(pid, syscall.SIGKILL)
		_, _ = syscall.Wait4(pid, nil, 0, nil)
		return nil, fmt.Errorf("the guard of the command has ended at its start: %w", err)
	}
	return &guard{pid: pid, orders: ordersIn}, nil
}

// bound tells the guard when to terminate the group, and when to kill it. If this process pauses between the two clocks that it reads, the times
// become earlier, never later.
func (g *guard) bound(terminate, kill time.Time) {
	now := guardNow()
	_, _ = g.orders.Write(order{now + int64(time.Until(terminate)), now + int64(time.Until(kill))}.bytes()) // a guard that is gone is noticed elsewhere
}

// dismiss tells the guard to end, and to leave the group alone.
func (g *guard) dismiss() {
	_, _ = g.orders.Write(farewell.bytes())
	_ = g.orders.Close()
}
