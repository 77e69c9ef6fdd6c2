// Package caddycli has the commands "caddy redlock …".
package caddycli

import (
	"encoding/json"
	"io"

	"github.com/caddyserver/caddy/v2"
	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	"github.com/spf13/cobra"

	"github.com/caddy-redlock/caddy-redlock/internal/base/version"
	"github.com/caddy-redlock/caddy-redlock/internal/programs/cli"
	"github.com/caddy-redlock/caddy-redlock/internal/programs/doctor"
	"github.com/caddy-redlock/caddy-redlock/internal/programs/explain"
)

// Module is what the commands need of the module that has them.
type Module struct {
	// Masters returns what doctor needs to know of the settings of the app redlock, which may be absent.
	Masters func(ctx caddy.Context, app json.RawMessage) (doctor.Settings, error)
	Secrets explain.Secrets
	// Coverage prints which handlers of a configuration may act, and what stands before them.
	Coverage func(configuration []byte, out io.Writer) error
}

// Register adds the commands to Caddy.
func Register(m Module) {
	caddycmd.RegisterCommand(caddycmd.Command{
		Name:  "redlock",
		Short: "Looks after the locks of the redlock directive",
		Long: `
Looks after the locks of the redlock directive.

explain and doctor read a configuration, and need no running Caddy. masters, locks,
inspect, release and forget ask a running Caddy at its admin endpoint.

` + cli.ExitCodes,
		CobraFunc: func(cmd *cobra.Command) {
			cmd.Version = version.String()
			cmd.SetVersionTemplate("caddy-redlock {{.Version}}\n")
			cmd.Args = cobra.NoArgs // a command that doesn't exist is an error
			cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
			cmd.DisableFlagsInUseLine = true
			cmd.AddCommand(m.explain(), m.doctor(), program.Locks())
			cmd.AddCommand(program.Commands()...)
		},
	})
}

// program is caddy redlock, whose commands ask a running Caddy.
var program = &cli.Program{
	Name:  "caddy redlock",
	Whom:  "a running Caddy",
	Usage: "[--address <interface>] [--config <path> [--adapter <name>]] [--json]",
	Help: `
A running Caddy is asked at its admin endpoint: that of --address, else that of the
configuration, else CADDY_ADMIN or localhost:2019.`,
	Source: func() cli.Source { return new(adminFlags) },
	Exit: func(cmd *cobra.Command, code int, err error) error {
		if err != nil {
			cmd.PrintErrln("Error:", err.Error())
		}
		cmd.SilenceErrors = true // Caddy has no other way to set an exit code than an error
		return caddycmd.WrapCommandFuncForCobra(func(caddycmd.Flags) (int, error) { return code, nil })(cmd, nil)
	},
}
