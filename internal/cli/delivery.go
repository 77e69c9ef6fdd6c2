package cli

import (
	"errors"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/caddy-redlock/caddy-redlock/middleware"
)

// deliveryFlags name a delivery, or whatever else a rule knows by an ID. Its key is a hash, which nobody can type.
type deliveryFlags struct{ id, place, scope, scopeFile string }

const deliveryFlagsUsage = "[--id <ID> [--place <host/path>] [--scope <value> | --scope-file <path>]]"

const deliveryFlagsHelp = `
With --id the key is that of a delivery: <key> is what its rule locks, as in
{http.redlock.key} (several, or none, if the rule has so many), the ID what the rule's
dedupe or idempotency_key makes of the request, and --scope what its scope does. A scope
that is a secret, such as {header.Authorization}, is better read from a file; - is the
standard input. A rule with fingerprint off, as the presets for webhooks have it, knows an
ID at one place alone: want --place, such as shop.example.com/hooks/stripe.`

func (f *deliveryFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.id, "id", "", "ID of a delivery")
	cmd.Flags().StringVar(&f.place, "place", "", "Host and path of the delivery, of a rule with fingerprint off")
	cmd.Flags().StringVar(&f.scope, "scope", "", "Scope of the ID, of a rule that has a scope")
	cmd.Flags().StringVar(&f.scopeFile, "scope-file", "", "File whose first line is the scope")
	cmd.MarkFlagsMutuallyExclusive("scope", "scope-file")
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if cmd.Flags().Changed("id") {
			return nil
		}
		return cobra.ExactArgs(1)(cmd, args)
	}
}

// key returns the key that the arguments and the flags name.
func (f *deliveryFlags) key(cmd *cobra.Command, args []string) (string, error) {
	scoped := f.place != "" || f.scope != "" || f.scopeFile != ""
	switch {
	case !cmd.Flags().Changed("id") && scoped:
		return "", errors.New("--place and --scope belong to an ID: want --id, too")
	case !cmd.Flags().Changed("id"):
		return args[0], nil
	case f.id == "":
		return "", errors.New("--id is empty: want the ID of the delivery")
	}
	scope := f.scope
	if f.scopeFile != "" {
		var err error
		if scope, err = firstLineOf(cmd.InOrStdin(), f.scopeFile); err != nil {
			return "", err
		}
	}
	return middleware.DeliveryKey(args, f.id, middleware.ScopeAt(f.place, scope)), nil
}

// firstLineOf returns the first line of a file, or of the standard input for the name -.
func firstLineOf(stdin io.Reader, name string) (line string, err error) {
	var text []byte
	if name == "-" {
		text, err = io.ReadAll(stdin)
	} else {
		text, err = os.ReadFile(name)
	}
	line, _, _ = strings.Cut(string(text), "\n")
	if line = strings.TrimSuffix(line, "\r"); err == nil && line == "" {
		err = errors.New("--scope-file: the first line is empty")
	}
	return line, err
}
