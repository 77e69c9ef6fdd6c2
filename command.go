package caddyredlock

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"syscall"

	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	"github.com/spf13/cobra"

	"github.com/caddy-redlock/caddy-redlock/internal/version"
)

// The exit codes of the commands. docs/commands.md has them, too.
const (
	exitWell     = 0
	exitError    = 1 // wrong use, no configuration, or no Caddy that answers
	exitUnwell   = 2 // locks are in danger, or can't be taken
	exitNotThere = 3 // the key has no lock, or another one, or nothing to forget
)

func init() {
	caddycmd.RegisterCommand(caddycmd.Command{
		Name:  "redlock",
		Short: "Looks after the locks of the redlock directive",
		Long: `
Looks after the locks of the redlock directive.

explain and doctor read a configuration, and need no running Caddy. masters, locks,
inspect, release and forget ask a running Caddy at its admin endpoint.

Exit codes: 0 all is well, 1 wrong use or no Caddy that answers, 2 locks are in danger
or can't be taken, 3 the key has no lock, or another one, or nothing to forget.`,
		CobraFunc: func(cmd *cobra.Command) {
			cmd.Version = version.String()
			cmd.SetVersionTemplate("caddy-redlock {{.Version}}\n")
			cmd.Args = cobra.NoArgs // a command that doesn't exist is an error
			cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
			cmd.DisableFlagsInUseLine = true
			cmd.AddCommand(explainCmd(), doctorCmd(), mastersCmd(), locksCmd(), inspectCmd(), releaseCmd(), forgetCmd())
		},
	})
}

// withCode makes a cobra function of one that returns an exit code. An error is printed, and its code is 1 at least.
func withCode(f func(cmd *cobra.Command, args []string) (code int, err error)) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		cmd.SilenceUsage = true
		code, err := f(cmd, args)
		if code <= exitError {
			return err
		}
		if err != nil {
			cmd.PrintErrln("Error:", err.Error())
		}
		cmd.SilenceErrors = true // Caddy has no other way to set an exit code than an error
		return caddycmd.WrapCommandFuncForCobra(func(caddycmd.Flags) (int, error) { return code, nil })(cmd, args)
	}
}

// configFlags are the flags that name a configuration, as Caddy's own commands have them.
type configFlags struct{ config, adapter string }

func (f *configFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringVarP(&f.config, "config", "c", "", "Configuration file (default: the Caddyfile in this folder)")
	cmd.Flags().StringVarP(&f.adapter, "adapter", "a", "", "Name of config adapter to apply")
}

// load returns the configuration as JSON.
func (f *configFlags) load() ([]byte, error) {
	text, _, _, err := caddycmd.LoadConfig(f.config, f.adapter)
	if err == nil && len(text) == 0 {
		err = errors.New("no configuration: there is no Caddyfile in this folder; use --config")
	}
	return text, err
}

// interruptible returns a context that ends with Ctrl-C.
func interruptible(cmd *cobra.Command) (context.Context, context.CancelFunc) {
	ctx := cmd.Context()
	if ctx == nil {
		ctx = context.Background()
	}
	return signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
}
