// Package clients has the cases that a client of the agent passes in any language, as docs/protocol.md says. The clients are files to be copied.
package clients

import _ "embed"

// Cases is the file cases.json.
//
//go:embed cases.json
var Cases []byte
