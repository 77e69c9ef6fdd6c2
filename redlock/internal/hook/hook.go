// Package hook leads into package redlock from inner packages that tests use. Nobody else uses it.
package hook

import "github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"

// MasterOf makes a redlock.Master of an implementation. Package redlock sets it.
var MasterOf func(protocol.Master) any
