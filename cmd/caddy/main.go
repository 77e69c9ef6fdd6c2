// Command caddy is Caddy with its standard modules, redlock, and a slow backend to try redlock with.
package main

import (
	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	_ "github.com/caddyserver/caddy/v2/modules/standard"

	_ "github.com/caddy-redlock/caddy-redlock"
	_ "github.com/caddy-redlock/caddy-redlock/cmd/caddy/slowbackend"
)

func main() { caddycmd.Main() }
