package main

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
)

// socketRights say who may connect to a Unix socket.
type socketRights struct{ mode, group string }

// listen makes a Unix socket, with its folder if need be, in place of one that nobody listens on any more. Nobody can connect before its rights are set, because it
// gets its name only then.
func (s socketRights) listen(path string) (net.Listener, error) {
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
	if c, err := net.Dial("unix", path); err == nil {
		_ = c.Close()
		return nil, errors.New("another process listens there")
	}
	if err := os.Mkdir(filepath.Dir(path), 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, fmt.Errorf("%w: make this folder, or name one where this user may write, as in --listen unix:/tmp/redlock.sock", err)
	}
	hidden := fmt.Sprintf("%s.%d", path, os.Getpid())
	_ = os.Remove(hidden)
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: hidden, Net: "unix"})
	if err != nil {
		return nil, err
	}
	l.SetUnlinkOnClose(false) // the next agent may have taken the name
	if gid >= 0 {
		err = os.Chown(hidden, -1, gid)
	}
	if err := errors.Join(err, os.Chmod(hidden, os.FileMode(mode)), os.Rename(hidden, path)); err != nil {
		_ = l.Close()
		_ = os.Remove(hidden)
		return nil, err
	}
	return &renamed{l, path}, nil
}

// renamed is a listener whose socket has got another name.
type renamed struct {
	net.Listener
	path string
}

func (r *renamed) Addr() net.Addr { return &net.UnixAddr{Name: r.path, Net: "unix"} }

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

// notifySystemd tells systemd of a state, if it wants to know.
func notifySystemd(state string) {
	c, err := net.Dial("unixgram", os.Getenv("NOTIFY_SOCKET"))
	if err != nil {
		return
	}
	_, _ = c.Write([]byte(state))
	_ = c.Close()
}
