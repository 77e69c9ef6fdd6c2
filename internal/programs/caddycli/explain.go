package caddycli

import (
	"github.com/spf13/cobra"

	"github.com/caddy-redlock/caddy-redlock/internal/programs/explain"
)

func (m Module) explain() *cobra.Command {
	var config configFlags
	var asked explain.Request
	cmd := &cobra.Command{
		Use:   "explain [--config <path>] [--adapter <name>] [-X <method>] [-H <header>]... [-d <body>|@<file>] <url>",
		Short: "Prints the redlock rules that a request matches, and the keys that they would lock",
		Long: `
Prints the redlock rules that a request matches, and the keys that they would lock.

Nothing is locked and no server is contacted, so Redis need not run. Handlers that
change the request before redlock are run, proxies are not.`,
		Example:               `  caddy redlock explain -X POST https://shop.example.com/orders/42/pay`,
		DisableFlagsInUseLine: true,
		Args:                  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			cmd.SilenceUsage = true
			asked.URL = args[0]
			text, err := config.load()
			if err != nil {
				return err
			}
			return explain.Run(text, asked, m.Secrets, cmd.OutOrStdout())
		},
	}
	config.add(cmd.Flags())
	cmd.Flags().StringVarP(&asked.Method, "request", "X", "", "Method of the request")
	cmd.Flags().StringArrayVarP(&asked.Headers, "header", "H", nil, "Header of the request, as Name: value")
	cmd.Flags().StringVarP(&asked.Body, "data", "d", "", "Body of the request, or @file")
	return cmd
}
