package caddycli

import (
	"errors"
	"os"

	"github.com/spf13/cobra"

	"github.com/caddy-redlock/caddy-redlock/internal/programs/explain"
)

func (m Module) explain() *cobra.Command {
	var config configFlags
	var asked explain.Request
	var routes string
	cmd := &cobra.Command{
		Use:   "explain [--config <path>] [--adapter <name>] [-X <method>] [-H <header>]... [-d <body>|@<file>] [--routes <file>] [<url>]",
		Short: "Prints the redlock rules that a request matches, and the keys that they would lock",
		Long: `
Prints the redlock rules that a request matches, and the keys that they would lock.

Nothing is locked and no server is contacted, so Redis need not run. Handlers that
change the request before redlock are run, proxies are not.

With --routes each line of the file is a route of the application, such as
POST /orders/{id}/pay, and the URL that of its site. Without a URL, the command
prints the handlers that may act, and whether redlock_require stands before them.`,
		Example: `  caddy redlock explain -X POST https://shop.example.com/orders/42/pay
  php artisan route:list | awk '{print $1, "/" $2}' | caddy redlock explain --routes - https://shop.example.com
  caddy redlock explain`,
		DisableFlagsInUseLine: true,
		Args:                  cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			cmd.SilenceUsage = true
			text, err := config.load()
			switch {
			case err != nil:
				return err
			case len(args) == 0 && routes != "":
				return errors.New("--routes: want the URL of the site, such as https://shop.example.com")
			case len(args) == 0:
				return m.Coverage(text, cmd.OutOrStdout())
			case routes == "-":
				return explain.Routes(text, args[0], cmd.InOrStdin(), m.Secrets, cmd.OutOrStdout())
			case routes != "":
				file, err := os.Open(routes)
				if err != nil {
					return err
				}
				defer file.Close()
				return explain.Routes(text, args[0], file, m.Secrets, cmd.OutOrStdout())
			}
			asked.URL = args[0]
			return explain.Run(text, asked, m.Secrets, cmd.OutOrStdout())
		},
	}
	config.add(cmd.Flags())
	cmd.Flags().StringVarP(&asked.Method, "request", "X", "", "Method of the request")
	cmd.Flags().StringArrayVarP(&asked.Headers, "header", "H", nil, "Header of the request, as Name: value")
	cmd.Flags().StringVar(&routes, "routes", "", "File with a route in each line, as METHOD /path, or - for the standard input")
	cmd.Flags().StringVarP(&asked.Body, "data", "d", "", "Body of the request, or @file")
	return cmd
}
