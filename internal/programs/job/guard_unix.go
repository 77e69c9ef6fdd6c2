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

// GuardName is the name, argv[0], by which the program is the guard of a job. It isn't the program's own: whoever ends all processes
// of that name shall leave the guards.
const GuardName = "lock-guard"

// An order tells the guard when to end its process group, as the times of guardClock. The latest counts.
type order struct{ terminate, kill int64 }

const orderSize = 16

// farewell is the order to leave the group alone, and end. Without it, the end of the orders is that of the process that holds the
// lock: then the group is killed.
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

// Guard is the whole life of the guard: a process in the command's group, which ends the group when the lease does, whether the
// process that holds the lock is there, stopped or killed by then. It returns the exit code.
func Guard() int {
	signal.Ignore() // what the group gets is for the command
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
				_ = syscall.Kill(0, syscall.SIGCONT) // one that is stopped would not notice
			}
			orders.wait(current.kill - now)
		case orders.any:
			orders.wait(current.terminate - now)
		default:
			orders.wait(int64(time.Hour))
		}
	}
}

// reader reads orders as they come.
type reader struct {
	fd    int
	rest  []byte
	last  order
	any   bool
	ended error
}

// wait waits for the next order, at most as long.
func (r *reader) wait(nanoseconds int64) {
	const millisecond = int64(time.Millisecond)
	wait := min(max(0, (nanoseconds+millisecond-1)/millisecond), int64(time.Hour)/millisecond)
	_, _ = unix.Poll([]unix.PollFd{{Fd: int32(r.fd), Events: unix.POLLIN}}, int(wait))
}

// latest returns the last order that has come, so that one which has waited, while this process was stopped, counts before the time does.
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

// guard is the process that holds the lock's side of the guard.
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
	// Its standard error stays that of this process until it ends, so that a crash is seen.
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

// bound has the group terminated and killed then. The times are converted so that a pause of this process makes them earlier.
func (g *guard) bound(terminate, kill time.Time) {
	now := guardNow()
	_, _ = g.orders.Write(order{now + int64(time.Until(terminate)), now + int64(time.Until(kill))}.bytes()) // a guard that is gone is noticed elsewhere
}

// dismiss has the guard leave.
func (g *guard) dismiss() {
	_, _ = g.orders.Write(farewell.bytes())
	_ = g.orders.Close()
}
