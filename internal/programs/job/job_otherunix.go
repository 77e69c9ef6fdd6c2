//go:build unix && !linux

package job

import (
	"os"
	"syscall"
)

func executable() (string, error) { return os.Executable() }

// dieWithParent does nothing, because only Linux can kill a process when its parent ends. The guard kills the command's group instead.
func dieWithParent(*syscall.SysProcAttr) {}

// adopt does nothing, because only some systems can make this process the parent of processes that the command leaves behind.
func adopt() {}

// leftBehind reports whether processes of the command's group still run.
func leftBehind(group int) bool { return syscall.Kill(-group, 0) == nil }
