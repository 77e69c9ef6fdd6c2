// Package hook lets inner packages that tests use call package redlock. Nothing else uses it.
package hook

import "github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"

// MasterOf makes a redlock.Master from a protocol.Master. Package redlock sets it.
var MasterOf func(protocol.Master) any
