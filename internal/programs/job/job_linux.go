package job

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// executable is this program, even if its file has been replaced since.
func executable() (string, error) { return "/proc/self/exe", nil }

// dieWithParent makes the kernel kill the process when the thread that starts it ends. Here that is the main thread, which ends with this process.
func dieWithParent(sys *syscall.SysProcAttr) { sys.Pdeathsig = syscall.SIGKILL }

// adopt makes this process the parent of processes that the command leaves behind.
func adopt() { _ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) }

// leftBehind reports whether children of this process still run. The command and the guard have ended before.
func leftBehind(int) bool {
	for {
		pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil)
		if err == syscall.EINTR || pid > 0 {
			continue
		}
		return err == nil
	}
}
