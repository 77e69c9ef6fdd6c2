package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// line is the loop that forwards: one thread with an epoll and a timer of the kernel. Go's own timers
// wait in whole milliseconds where nothing else is to be done.
type line struct {
	epoll, timer int
	masters      map[int]int // by listener
	targets      []string
	ways         []way
	ends         map[int]*end // by file descriptor
	buffer       []byte

	mu   sync.Mutex
	late []time.Duration
}

// end is one of the two connections of a pair.
type end struct {
	fd    int
	out   *pipe // what is on its way to it
	other *end
	done  bool // nothing comes after what was written
}

const maxLate = 1 << 16 // samples

func newLine(n network, targets []string) (l *line, addrs []string, err error) {
	l = &line{targets: targets, masters: make(map[int]int), ends: make(map[int]*end), buffer: make([]byte, 256<<10)}
	if l.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return nil, nil, err
	}
	if l.timer, err = unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC); err != nil {
		return nil, nil, err
	}
	if err := l.watch(l.timer, unix.EPOLLIN); err != nil {
		return nil, nil, err
	}
	start := time.Now()
	for i := range targets {
		fd, addr, err := listen()
		if err != nil {
			return nil, nil, err
		}
		l.masters[fd], addrs = i, append(addrs, addr)
		l.ways = append(l.ways, n.way(i, start))
		if err := l.watch(fd, unix.EPOLLIN); err != nil {
			return nil, nil, err
		}
	}
	return l, addrs, nil
}

func (l *line) watch(fd int, events uint32) error {
	return unix.EpollCtl(l.epoll, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: events, Fd: int32(fd)})
}

func listen() (fd int, addr string, err error) {
	fd, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, "", err
	}
	if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		return 0, "", err
	}
	if err := unix.Listen(fd, 1024); err != nil {
		return 0, "", err
	}
	name, err := unix.Getsockname(fd)
	if err != nil {
		return 0, "", err
	}
	return fd, fmt.Sprintf("127.0.0.1:%d", name.(*unix.SockaddrInet4).Port), nil
}

func (l *line) run() error {
	runtime.LockOSThread()
	// Where we may: this thread is the instrument, and goes before what it measures.
	_ = unix.SchedSetAttr(0, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO, Priority: 1}, 0)
	events := make([]unix.EpollEvent, 256)
	for {
		n, err := unix.EpollWait(l.epoll, events, -1)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return os.NewSyscallError("epoll_wait", err)
		}
		for _, event := range events[:max(n, 0)] {
			fd := int(event.Fd)
			if master, ok := l.masters[fd]; ok {
				l.accept(fd, master)
			} else if e, ok := l.ends[fd]; ok {
				e.out.stuck = e.out.stuck && event.Events&unix.EPOLLOUT == 0
				l.read(e)
			}
		}
		if err := l.arm(l.deliver()); err != nil {
			return err
		}
	}
}

func (l *line) accept(listener, master int) {
	for {
		fd, _, err := unix.Accept4(listener, unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC)
		if err != nil {
			return
		}
		server, err := dial(l.targets[master])
		if err != nil {
			_ = unix.Close(fd)
			continue
		}
		way := l.ways[master]
		opens := time.Now().Add(way.trip)
		client := &end{fd: fd, out: &pipe{way: way, opens: opens}}
		client.other = &end{fd: server, out: &pipe{way: way, opens: opens}, other: client}
		for _, e := range []*end{client, client.other} {
			_ = unix.SetsockoptInt(e.fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1)
			l.ends[e.fd] = e
			if err := l.watch(e.fd, unix.EPOLLIN|unix.EPOLLOUT|unix.EPOLLRDHUP|unix.EPOLLET); err != nil {
				l.drop(e)
				break
			}
		}
	}
}

func dial(target string) (fd int, err error) {
	addr, err := net.ResolveTCPAddr("tcp4", target)
	if err != nil {
		return 0, err
	}
	fd, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	if err = unix.Connect(fd, &unix.SockaddrInet4{Port: addr.Port, Addr: [4]byte(addr.IP.To4())}); err == nil {
		err = unix.SetNonblock(fd, true)
	}
	if err != nil {
		_ = unix.Close(fd)
	}
	return fd, err
}

// read takes all that there is.
func (l *line) read(e *end) {
	for {
		n, err := unix.Read(e.fd, l.buffer)
		switch {
		case n > 0:
			e.other.out.push(slices.Clone(l.buffer[:n]), time.Now())
			continue
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EAGAIN):
			return
		}
		if !e.other.done {
			e.other.done = true
			e.other.out.push(nil, time.Now())
		}
		return
	}
}

// deliver writes all that is due, and tells when the next is.
func (l *line) deliver() (next time.Time) {
	for _, e := range l.ends {
		p := e.out
		for len(p.queue) > 0 && !p.stuck {
			c := &p.queue[0]
			if now := time.Now(); c.due.After(now) {
				if next.IsZero() || c.due.Before(next) {
					next = c.due
				}
				break
			}
			if c.data == nil {
				l.drop(e)
				break
			}
			n, err := unix.Write(e.fd, c.data)
			if errors.Is(err, unix.EAGAIN) {
				p.stuck = true
				break
			}
			if err != nil {
				l.drop(e)
				break
			}
			if c.data = c.data[n:]; len(c.data) > 0 {
				continue
			}
			l.arrived(c)
			p.pop()
		}
	}
	return next
}

func (l *line) arrived(c *chunk) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !c.late && len(l.late) < maxLate {
		l.late = append(l.late, time.Since(c.due))
	}
}

func (l *line) takeLate() []time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	late := l.late
	l.late = nil
	return late
}

// drop closes both connections of a pair.
func (l *line) drop(e *end) {
	for _, e := range []*end{e, e.other} {
		if l.ends[e.fd] == e {
			delete(l.ends, e.fd)
			_ = unix.Close(e.fd)
		}
		e.out.queue = nil
	}
}

// arm sets the timer, or stops it where nothing is under way.
func (l *line) arm(next time.Time) error {
	var in time.Duration
	if !next.IsZero() {
		in = max(time.Until(next), 1)
	}
	spec := unix.ItimerSpec{Value: unix.NsecToTimespec(int64(in))}
	return os.NewSyscallError("timerfd_settime", unix.TimerfdSettime(l.timer, 0, &spec, nil))
}
