//go:build unix && !linux

package job

import (
	"os"
	"syscall"
)

func executable() (string, error) { return os.Executable() }

// dieWithParent does nothing: only Linux can. The guard kills the command's group.
func dieWithParent(*syscall.SysProcAttr) {}

// adopt does nothing: only some systems can.
func adopt() {}

// leftBehind reports whether processes of the command's group still run.
func leftBehind(group int) bool { return syscall.Kill(-group, 0) == nil }
