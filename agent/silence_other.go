//go:build !linux

package agent

import "net"

// limitUnacknowledged does nothing. Systems other than Linux end a connection with unacknowledged data on their own, but only after minutes.
func limitUnacknowledged(*net.TCPConn) {}
