package cli

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/caddy-redlock/caddy-redlock/middleware"
)

// deliveryFlags name a delivery, or whatever else a rule knows by an ID. Its key is a hash, which nobody can type.
type deliveryFlags struct{ id, host, site, place, scope, scopeFile, signer, user string }

const deliveryFlagsUsage = "[--id <ID> (--host <host> | --site <name>) [--place <method and path>] [--scope <value> | --scope-file <path> | --user <name>] [--signer <name>]]"

const deliveryFlagsHelp = `
With --id the key is that of a delivery: <key> is what its rule locks, as in
{http.redlock.key} (several, or none, if the rule has so many; none where idempotency_key
is remembered with a fingerprint), the ID what the rule's dedupe or idempotency_key makes
of the request, --host the host to which it goes, or --site what the rule has as its site,
and --scope what its scope does. A scope that is a secret, such as
{header.Authorization}, is better read from a file; - is the standard input. If the rule
itself sets none, and Caddy authenticates, want --user, as in {http.auth.user.id}. A rule with
fingerprint off, as the presets for webhooks have it, knows an ID at one place alone: want
--place, such as "POST /hooks/stripe", as "caddy redlock explain" prints it.
A rule with several senders wants the one that has signed it, by the name in its verify: --signer.`

func (f *deliveryFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.id, "id", "", "ID of a delivery")
	cmd.Flags().StringVar(&f.host, "host", "", "Host of the delivery, of a rule without a site")
	cmd.Flags().StringVar(&f.site, "site", "", "Site of the rule")
	cmd.Flags().StringVar(&f.place, "place", "", "Method, path and query of the delivery, of a rule with fingerprint off")
	cmd.Flags().StringVar(&f.scope, "scope", "", "Scope of the ID, of a rule that has a scope")
	cmd.Flags().StringVar(&f.scopeFile, "scope-file", "", "File whose first line is the scope")
	cmd.Flags().StringVar(&f.signer, "signer", "", "Who has signed the delivery, by the name in the rule's verify")
	cmd.Flags().StringVar(&f.user, "user", "", "Whom authentication has found, if the rule itself sets no scope")
	cmd.MarkFlagsMutuallyExclusive("host", "site")
	cmd.MarkFlagsMutuallyExclusive("scope", "scope-file", "user")
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if cmd.Flags().Changed("id") {
			return nil
		}
		return cobra.ExactArgs(1)(cmd, args)
	}
}

// key returns the key that the arguments and the flags name.
func (f *deliveryFlags) key(cmd *cobra.Command, args []string) (string, error) {
	more := f.host != "" || f.site != "" || f.place != "" || f.scope != "" || f.scopeFile != "" || f.user != "" || f.signer != ""
	switch {
	case !cmd.Flags().Changed("id") && more:
		return "", errors.New("--host, --site, --place, --scope, --user and --signer belong to an ID: want --id, too")
	case !cmd.Flags().Changed("id"):
		return args[0], nil
	case f.id == "":
		return "", errors.New("--id is empty: want the ID of the delivery")
	case f.host == "" && f.site == "":
		return "", errors.New("--id needs --host, to which the delivery goes, such as shop.example.com, or --site, as its rule has it")
	case f.place != "" && !strings.Contains(f.place, " /"):
		return "", fmt.Errorf(`--place %q: want the method and the path, such as "POST /hooks/stripe"`, f.place)
	}
	delivery := middleware.Delivery{Keys: args, ID: f.id, Host: f.host, Site: f.site, Place: f.place, Signer: f.signer, Scope: f.scope, User: f.user}
	if f.scopeFile != "" {
		var err error
		if delivery.Scope, err = firstLineOf(cmd.InOrStdin(), f.scopeFile); err != nil {
			return "", fmt.Errorf("--scope-file: %w", err)
		}
	}
	return delivery.Key(), nil
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
		err = errors.New("the first line is empty")
	}
	return line, err
}
