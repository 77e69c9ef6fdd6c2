// Package hook leads into package redlock from the packages inside it that tests use. Nobody else has it.
package hook

import "github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"

// MasterOf makes a redlock.Master of an implementation. Package redlock sets it.
var MasterOf func(protocol.Master) any
