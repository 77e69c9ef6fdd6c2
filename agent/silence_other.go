//go:build !linux

package agent

import "net"

// limitUnacknowledged does nothing: what was sent and isn't acknowledged is given up after the system's own time, which is minutes.
func limitUnacknowledged(*net.TCPConn) {}
