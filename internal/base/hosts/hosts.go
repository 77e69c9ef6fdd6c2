// Package hosts checks the header Host. A page of another site can have a browser send requests to any address under a name of its own (DNS
// rebinding), and only this header shows that.
package hosts

import (
	"net"
	"net/netip"
	"slices"
	"strings"
)

// Knows reports whether a Host, with or without a port, is localhost, an address of loopback, or one of the names, which are in lower
// case and without a port.
func Knows(host string, names []string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	host = strings.ToLower(strings.Trim(host, "[]"))
	if host == "localhost" || slices.Contains(names, host) {
		return true
	}
	address, err := netip.ParseAddr(host)
	return err == nil && address.Unmap().IsLoopback()
}
