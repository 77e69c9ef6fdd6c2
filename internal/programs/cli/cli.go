// Package cli has the operator's commands. Two programs have them: caddy redlock, which asks a running Caddy, and redlock, which asks the masters or
// an agent.
package cli

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/caddy-redlock/caddy-redlock/console"
)

// The exit codes of the commands. docs/commands.md has them, too.
const (
	exitWell     = 0
	exitError    = 1 // wrong use, no configuration, or nobody who answers
	exitUnwell   = 2 // locks are in danger, or can't be taken
	exitNotThere = 3 // the key has no lock, or another one, or nothing to forget
)

// ExitCodes says in the help of a program what its commands exit with.
const ExitCodes = `Exit codes: 0 all is well, 1 wrong use or nobody who answers, 2 locks are in danger or
can't be taken, 3 the key has no lock, or another one, or nothing to forget.`

// Program is a program that has these commands.
type Program struct {
	Name  string // as people type it, such as caddy redlock
	Whom  string // whom the commands ask
	Usage string // the flags that say whom to ask, for the usage
	Help  string // the help on these flags, below the help of each command

	// Source returns whom a command asks, with flags of its own.
	Source func() Source
	// Exit returns the error that ends the program with a code above 1, after it has told the error, if there is one.
	Exit func(cmd *cobra.Command, code int, err error) error
}

// Source leads to an Endpoint by its flags.
type Source interface {
	AddFlags(flags *pflag.FlagSet)
	Open(flags *pflag.FlagSet) (Endpoint, error)
}

// Endpoint answers what the console does.
type Endpoint interface {
	// Ask sends a request for a path of the console, and decodes the response. What the console refuses is a *console.Problem.
	Ask(ctx context.Context, method, path string, query url.Values, into any) error
	Close() // ends what Open has begun
}

// Commands returns the commands that need only the masters.
func (p *Program) Commands() []*cobra.Command {
	return []*cobra.Command{p.masters(), p.inspect(), p.release(), p.forget()}
}

// Decode reads a response of the console. known is false if something other than the console has answered. The error is a *console.Problem.
func Decode(status int, header http.Header, body []byte, into any) (known bool, err error) {
	kind, _, _ := strings.Cut(header.Get("Content-Type"), ";")
	switch problem := new(console.Problem); {
	case kind == "application/problem+json" && json.Unmarshal(body, problem) == nil:
		return true, problem
	case status == http.StatusOK && kind == "application/json" && json.Unmarshal(body, into) == nil:
		return true, nil
	}
	return false, nil
}

// asking are the flags of a command that asks.
type asking struct {
	source Source
	flags  *pflag.FlagSet
	json   bool
}

func (a *asking) add(cmd *cobra.Command, p *Program) {
	a.source, a.flags = p.Source(), cmd.Flags()
	a.source.AddFlags(a.flags)
	a.flags.BoolVar(&a.json, "json", false, "Print JSON")
}

func (a *asking) open() (Endpoint, error) { return a.source.Open(a.flags) }

// ask asks once, until Ctrl-C.
func (a *asking) ask(cmd *cobra.Command, method, path string, query url.Values, into any) error {
	endpoint, err := a.open()
	if err != nil {
		return err
	}
	defer endpoint.Close()
	ctx, stop := interruptible(cmd)
	defer stop()
	return endpoint.Ask(ctx, method, path, query, into)
}

// withCode turns a function that returns an exit code into a function for cobra. An error has a code of at least 1.
func (p *Program) withCode(f func(cmd *cobra.Command, args []string) (code int, err error)) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		cmd.SilenceUsage = true
		code, err := f(cmd, args)
		if code > exitError {
			return p.Exit(cmd, code, err)
		}
		return err
	}
}

// exitOf returns the exit code for an error of the console.
func exitOf(err error) int {
	var problem *console.Problem
	if !errors.As(err, &problem) {
		return exitError
	}
	switch problem.Status {
	case http.StatusNotFound, http.StatusConflict:
		return exitNotThere
	case http.StatusServiceUnavailable:
		return exitUnwell
	}
	return exitError
}

// interruptible returns a context that ends with Ctrl-C.
func interruptible(cmd *cobra.Command) (context.Context, context.CancelFunc) {
	ctx := cmd.Context()
	if ctx == nil {
		ctx = context.Background()
	}
	return signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
}
