package job

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// executable is this program, even if its file has been replaced since.
func executable() (string, error) { return "/proc/self/exe", nil }

// dieWithParent has the kernel kill a process when the thread that starts it ends: that of main, with the process.
func dieWithParent(sys *syscall.SysProcAttr) { sys.Pdeathsig = syscall.SIGKILL }

// adopt makes this process the parent of what the command leaves behind.
func adopt() { _ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) }

// leftBehind reports whether processes of the command's still run. The group is that of the command, without the guard.
func leftBehind(int) bool {
	for {
		pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil)
		if err == syscall.EINTR || pid > 0 {
			continue
		}
		return err == nil
	}
}
