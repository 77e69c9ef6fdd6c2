package cli

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"

	"github.com/spf13/cobra"

	"github.com/caddy-redlock/caddy-redlock/console"
)

func (p *Program) forget() *cobra.Command {
	var flags asking
	var delivery deliveryFlags
	cmd := &cobra.Command{
		Use:   "forget " + deliveryFlagsUsage + " " + p.Usage + " <key>...",
		Short: "Forgets the response that is remembered, so that a delivery runs again",
		Long: `
Forgets the response that is remembered for a delivery, so that the next one with its ID
runs again; or that a job has run in its period (redlock run --once-per). inspect shows whether there is one. Nothing is forgotten while the delivery
runs.

The exit code is 2 if some masters could not be asked, and may still remember the response:
then forget it again when they are back. It is 3 if no response is remembered, or the
delivery runs.
` + deliveryFlagsHelp + "\n" + p.Help,
		Example:               "  " + p.Name + " forget --id evt_1 --host shop.example.com order:42",
		DisableFlagsInUseLine: true,
		RunE: p.withCode(func(cmd *cobra.Command, args []string) (int, error) {
			key, err := delivery.key(cmd, args)
			if err != nil {
				return exitError, err
			}
			var forgotten console.Forgotten
			if err := flags.ask(cmd, http.MethodDelete, "results", url.Values{"key": {key}}, &forgotten); err != nil {
				return exitOf(err), notForgotten(err)
			}
			code := exitWell
			if len(forgotten.Left) > 0 {
				code = exitUnwell
			}
			if flags.json {
				return code, printJSON(cmd.OutOrStdout(), forgotten)
			}
			fmt.Fprintln(cmd.OutOrStdout(), "forgotten: the next one with this key runs again")
			for _, m := range forgotten.Left {
				paragraph(cmd.OutOrStdout(), "", m.Name+" may still remember it: "+m.Error)
			}
			return code, nil
		}),
	}
	flags.add(cmd, p)
	delivery.add(cmd)
	return cmd
}

// notForgotten is told for a response that could not be forgotten.
func notForgotten(err error) error {
	var problem *console.Problem
	switch {
	case !errors.As(err, &problem):
	case problem.Status == http.StatusConflict:
		return errors.New("nothing was forgotten: the key is held, so the delivery runs now")
	case problem.Status == http.StatusNotFound && problem.Detail == "":
		return errors.New("nothing was forgotten: no master remembers anything for the key; the keys, the ID, --host, --place and --scope must be as the rule makes them")
	}
	return told(err)
}
