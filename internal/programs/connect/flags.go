package connect

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/spf13/pflag"

	"github.com/caddy-redlock/caddy-redlock/internal/base/inside"
	"github.com/caddy-redlock/caddy-redlock/internal/programs/rule"
	"github.com/caddy-redlock/caddy-redlock/redlock"
)

// Help says, below the flags of a command, where else the masters may come from.
const Help = `
The masters are those of --masters, REDLOCK_MASTERS or --masters-file: URLs, separated by
spaces or commas. Each flag of redlock run and redlock agent, and of the other commands
those of masters, may be a variable of the environment instead, such as
REDLOCK_RESTART_GUARD for --restart-guard. One that may be given several times takes
values with spaces or commas between them. REDLOCK_PASSWORD has the password, if
--password-file doesn't. All processes that share locks, Caddys among them, must have the
same masters, prefix and max TTL.`

// AddFlags adds the flags to a command. After Environment, the settings have the values of the flags, or else of their variables.
func (s *Settings) AddFlags(flags *pflag.FlagSet) {
	s.flags = flags
	ListVar(flags, &s.Masters, "masters", "URLs", "URLs of the masters: redis://[user:password@]host[:port], rediss:// for TLS, redis-cluster:// for a Redis Cluster, unix:///path")
	flags.StringVar(&s.MastersFile, "masters-file", "", "File with URLs of masters")
	flags.StringVar(&s.Username, "username", "", "User at the masters whose URLs have none")
	flags.StringVar(&s.PasswordFile, "password-file", "", "File with the password of the user at the masters")
	flags.StringVar(&s.CA, "tls-ca", "", "File with the certificates of the authorities to trust (default: those of the system)")
	flags.StringVar(&s.Certificate, "tls-cert", "", "File with the certificate that is shown to the masters")
	flags.StringVar(&s.Key, "tls-key", "", "File with the key of that certificate")
	flags.StringVar(&s.ServerName, "tls-server-name", "", "Name that the certificate of each master must have (default: the host in its URL)")
	DurationVar(flags, &s.Timeout, "timeout", "", redlock.DefaultTimeout, "How long a master may take to answer")
	flags.StringVar(&s.Prefix, "prefix", redlock.DefaultPrefix, "What all keys on the masters begin with: key_prefix in a Caddyfile")
	DurationVar(flags, &s.MaxTTL, "max-ttl", "", redlock.DefaultMaxTTL, "Longest TTL that a lock of any process may have")
	flags.StringVar(&s.RestartGuard, "restart-guard", "", "How long a master has no vote after its start, or off (default: max TTL and one second)")
	flags.StringVar(&s.MaxSkew, "max-skew", "", fmt.Sprintf("How far the masters' clocks may differ, or off (default: %v)", inside.DefaultMaxSkew(redlock.DefaultMaxTTL)))
	flags.StringVar(&s.Instance, "instance", "", "Name by which others see who holds a key (default: host/process)")
}

// names are the flags of AddFlags that have a variable of the environment.
var names = []string{
	"masters", "masters-file", "username", "password-file", "tls-ca", "tls-cert", "tls-key", "tls-server-name",
	"timeout", "prefix", "max-ttl", "restart-guard", "max-skew", "instance",
}

// Environment sets the flags of AddFlags that are not on the command line from their variables.
func Environment(flags *pflag.FlagSet) error { return Variables(flags, names...) }

// WholeEnvironment is Environment for all flags of a command.
func WholeEnvironment(flags *pflag.FlagSet) error {
	var all []string
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Name != "help" {
			all = append(all, f.Name)
		}
	})
	return Variables(flags, all...)
}

// oneSetting has the flags that are one setting: a flag of them hides the variables of all.
var oneSetting = [][]string{{"masters", "masters-file", "agent"}, {"try", "wait"}}

// Variables sets the flags with these names that are not on the command line from their variables.
func Variables(flags *pflag.FlagSet, which ...string) error {
	var hidden []string
	flags.Visit(func(f *pflag.Flag) {
		hidden = append(hidden, f.Name)
		for _, one := range oneSetting {
			if slices.Contains(one, f.Name) {
				hidden = append(hidden, one...)
			}
		}
	})
	for _, name := range which {
		variable := Variable(name)
		text := os.Getenv(variable)
		if text == "" || slices.Contains(hidden, name) {
			continue
		}
		if err := flags.Lookup(name).Value.Set(text); err != nil {
			return fmt.Errorf("%s: %w", variable, err)
		}
		_ = flags.SetAnnotation(name, fromVariable, []string{variable}) // it exists
	}
	return nil
}

// IsSet reports whether a flag or its variable was set.
func IsSet(flags *pflag.FlagSet, name string) bool {
	return flags.Changed(name) || flags.Lookup(name).Annotations[fromVariable] != nil
}

// Name returns what the user has written to set a flag: the flag, or its variable.
func Name(flags *pflag.FlagSet, name string) string {
	if flags == nil {
		return "--" + name
	}
	if flag := flags.Lookup(name); flag != nil && flag.Annotations[fromVariable] != nil {
		return Variable(name)
	}
	return "--" + name
}

// fromVariable is the annotation of a flag that a variable of the environment has set.
const fromVariable = "variable"

// Variable returns the variable of the environment that has the value of a flag.
func Variable(flag string) string {
	return "REDLOCK_" + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// Split returns the values in a text, such as URLs, which are separated by spaces or commas.
func Split(text string) []string {
	return strings.FieldsFunc(text, func(r rune) bool { return r == ',' || unicode.IsSpace(r) })
}

// list is a flag with several values. It doesn't show them, because URLs may have passwords.
type list struct {
	into *[]string
	what string
}

// ListVar adds a flag that may be given several times, each time with values that are separated by spaces or commas.
func ListVar(flags *pflag.FlagSet, into *[]string, name, what, usage string) {
	flags.Var(list{into, what}, name, usage)
}

func (l list) String() string { return "" }

func (l list) Type() string { return l.what }

func (l list) Set(text string) error {
	values := Split(text)
	if len(values) == 0 {
		return fmt.Errorf("want %s, separated by spaces or commas", l.what)
	}
	*l.into = append(*l.into, values...)
	return nil
}

// DurationVar adds a flag with a duration, which is read as in a configuration, and so may have days.
func DurationVar(flags *pflag.FlagSet, into *time.Duration, name, shorthand string, standard time.Duration, usage string) {
	*into = standard
	flags.VarP((*duration)(into), name, shorthand, usage)
}

type duration time.Duration

func (d *duration) Type() string { return "duration" }

func (d *duration) Set(text string) error {
	read, err := rule.ParseDuration(text)
	*d = duration(read)
	return err
}

// String returns "" for 0, so that the usage of a flag shows no default.
func (d *duration) String() string {
	if *d == 0 {
		return ""
	}
	return time.Duration(*d).String()
}
