package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
	"time"
)

// socketRights say who may connect to a Unix socket, and whether it may take the place of one on which another process listens.
type socketRights struct {
	mode, group string
	replace     bool
}

// maxSocketPath is how many bytes the path of a Unix socket may have: the kernel's limit, less the zero at its end.
const maxSocketPath = len(syscall.RawSockaddrUnix{}.Path) - 1

// listen makes a Unix socket, and its folder if need be. The socket has another name until publish gives it this path, so that nobody
// can connect before its rights are set.
func (s socketRights) listen(path string) (*unixSocket, error) {
	mode, err := strconv.ParseUint(s.mode, 8, 32)
	if err != nil || mode > 0o777 {
		return nil, fmt.Errorf("mode %q: want octal digits such as 0660", s.mode)
	}
	gid := -1
	if s.group != "" {
		if gid, err = groupID(s.group); err != nil {
			return nil, err
		}
	}
	if there, err := os.Lstat(path); err == nil && there.Mode().Type() != fs.ModeSocket {
		return nil, errors.New("there is something else than a socket, which is left as it is: remove it, or name another path")
	}
	if !s.replace {
		if c, err := net.Dial("unix", path); err == nil {
			_ = c.Close()
			return nil, errors.New("another process listens there: --replace takes its place")
		}
	}
	if err := os.Mkdir(filepath.Dir(path), 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, fmt.Errorf("%w: make this folder, or name one where this user may write, as in --listen unix:/tmp/redlock.sock", err)
	}
	u := &unixSocket{path: path, name: filepath.Join(filepath.Dir(path), "."+rand.Text()[:10])} // agents in other containers may have this process's number
	if most := max(len(path), len(u.name)); most > maxSocketPath {
		return nil, fmt.Errorf("the path of a socket has at most %d bytes on this system, and this one takes %d: name a shorter one", maxSocketPath, most)
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: u.name, Net: "unix"})
	if err != nil {
		return nil, err
	}
	l.SetUnlinkOnClose(false) // the next agent may have taken the name
	u.Listener = l
	if gid >= 0 {
		err = os.Chown(u.name, -1, gid)
	}
	if err = errors.Join(err, os.Chmod(u.name, os.FileMode(mode))); err == nil {
		u.made, err = os.Lstat(u.name)
	}
	if err != nil {
		u.abandon()
		_ = l.Close()
		return nil, err
	}
	return u, nil
}

// unixSocket is a listener whose socket gets its name when all is ready.
type unixSocket struct {
	net.Listener
	path string // the name that publish gives the socket
	name string // the present name of the socket
	made fs.FileInfo
}

func (u *unixSocket) Addr() net.Addr { return &net.UnixAddr{Name: u.path, Net: "unix"} }

func (u *unixSocket) publish() error {
	if err := os.Rename(u.name, u.path); err != nil {
		return err
	}
	u.name = u.path
	return nil
}

// abandon removes the socket, unless another one has its name.
func (u *unixSocket) abandon() {
	if there, err := os.Lstat(u.name); err == nil && (u.made == nil || os.SameFile(there, u.made)) {
		_ = os.Remove(u.name)
	}
}

// watch calls replaced once another socket has taken the name, until stop is called.
func (u *unixSocket) watch(replaced func()) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		ticker := time.NewTicker(time.Second)
		defer ticker.Stop()
		for {
			if there, err := os.Lstat(u.path); err == nil && !os.SameFile(there, u.made) {
				replaced()
				return
			}
			select {
			case <-ticker.C:
			case <-ctx.Done():
				return
			}
		}
	}()
	return func() { cancel(); <-ended }
}

func groupID(name string) (int, error) {
	if id, err := strconv.Atoi(name); err == nil {
		return id, nil
	}
	g, err := user.LookupGroup(name)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(g.Gid)
}

// systemdSockets returns the sockets that systemd has opened for this process (sd_listen_fds), if any.
func systemdSockets() (all []net.Listener, err error) {
	const first = 3
	if os.Getenv("LISTEN_PID") != strconv.Itoa(os.Getpid()) {
		return nil, nil
	}
	n, err := strconv.Atoi(os.Getenv("LISTEN_FDS"))
	if err != nil {
		return nil, fmt.Errorf("LISTEN_FDS: %w", err)
	}
	for fd := first; fd < first+n; fd++ {
		file := os.NewFile(uintptr(fd), "systemd")
		l, err := net.FileListener(file)
		_ = file.Close()
		if err != nil {
			closeAll(all)
			return nil, fmt.Errorf("the socket of systemd: %w", err)
		}
		if unix, ok := l.(*net.UnixListener); ok {
			unix.SetUnlinkOnClose(false) // it is systemd's
		}
		all = append(all, l)
	}
	return all, nil
}

func notifySystemd(state string) {
	c, err := net.Dial("unixgram", os.Getenv("NOTIFY_SOCKET"))
	if err != nil {
		return
	}
	_, _ = c.Write([]byte(state))
	_ = c.Close()
}
