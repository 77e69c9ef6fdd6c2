package main

import (
	"errors"
	"fmt"
	"net/http"

	"github.com/spf13/cobra"

	"github.com/caddy-redlock/caddy-redlock/console"
	"github.com/caddy-redlock/caddy-redlock/internal/programs/cli"
	"github.com/caddy-redlock/caddy-redlock/internal/programs/connect"
)

const codeNotReady = 2 // as of redlock masters

// readyCmd is for probes in images without a shell.
func readyCmd() *cobra.Command {
	var address string
	var alive bool
	cmd := &cobra.Command{
		Use:   "ready --agent <address> [--alive]",
		Short: "Says whether an agent would give locks: a probe",
		Long: `
Says whether an agent would give a lock now, and if not, why. It asks where clients do. The
exit code is 0 if it would, 2 if it wouldn't, and 1 if no agent answers. With --alive it is
0 if an agent answers, whether its masters do or not.`,
		Example:               "  redlock ready --agent unix:/run/redlock/redlock.sock",
		Args:                  cobra.NoArgs,
		DisableFlagsInUseLine: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := connect.Variables(cmd.Flags(), "agent"); err != nil {
				return err
			}
			if address == "" {
				return errors.New("no agent: want --agent with its socket for clients, such as unix:/run/redlock/redlock.sock")
			}
			a, err := newAgentClient(address, "")
			if err != nil {
				return err
			}
			path, answer := "/readyz", "ready: it gives locks"
			if alive {
				path, answer = "/healthz", "alive: it answers"
			}
			response, body, err := a.call(cmd.Context(), http.MethodGet, path)
			if err != nil {
				return a.unreachable(err)
			}
			var problem *console.Problem
			switch _, err := cli.Decode(response.StatusCode, response.Header, body, nil); {
			case response.Header.Get("Redlock-Agent") == "":
				return a.something(response)
			case response.StatusCode == http.StatusOK:
				_, err := fmt.Fprintln(cmd.OutOrStdout(), answer)
				return err
			case errors.As(err, &problem):
				return &coded{codeNotReady, fmt.Errorf("the agent at %s: %s", a.address, problem.Detail)}
			}
			return a.something(response)
		},
	}
	cmd.Flags().StringVar(&address, "agent", "", "Agent to ask, at its address for clients; or REDLOCK_AGENT")
	cmd.Flags().BoolVar(&alive, "alive", false, "Only ask whether it answers")
	return cmd
}
