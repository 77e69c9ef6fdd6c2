package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/caddy-redlock/caddy-redlock/middleware"
)

func keyCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "key TEMPLATE [NAME=VALUE…]",
		Short: "Prints the key that a rule makes of values",
		Long: `
Prints the key that a rule with this template locks for a request with these values.
A value is named as in the template, without its kind: path.1 for {path.1:int}. It is
folded and refused as in a request; a value that no key is made of ends with 64.`,
		Example: `  redlock run "$(redlock key 'customer:{path.1:id}' path.1=CUS_1)" -- ./charge`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return &coded{codeUsage, errors.New("no template: want redlock key TEMPLATE [NAME=VALUE…]")}
			}
			return nil
		},
		DisableFlagsInUseLine: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			key, err := keyOf(args[0], args[1:])
			if err != nil {
				return &coded{codeUsage, err}
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), key)
			return err
		},
	}
	cmd.Flags().SetInterspersed(false)
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return &coded{codeUsage, err} })
	return cmd
}

func keyOf(template string, given []string) (string, error) {
	values := make(map[string]string)
	for _, arg := range given {
		name, value, ok := strings.Cut(arg, "=")
		if _, twice := values[name]; !ok || twice {
			return "", fmt.Errorf("%s: want one NAME=VALUE for each name, such as id=42", name)
		}
		values[name] = value
	}
	return middleware.Key(template, values)
}
