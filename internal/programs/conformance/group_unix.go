//go:build unix

package conformance

import (
	"os/exec"
	"syscall"
	"time"
)

// inGroup puts a worker into a process group of its own, which is told to end with the worker's context.
func inGroup(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
}

// endGroup ends what a worker has left behind in its group: by KILL what doesn't end in a second.
func endGroup(cmd *exec.Cmd) {
	sig := syscall.SIGTERM
	for range 100 {
		if syscall.Kill(-cmd.Process.Pid, sig) != nil {
			return
		}
		sig = 0
		time.Sleep(10 * time.Millisecond)
	}
	_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
}
