// Command redlock is the lock without Caddy: it runs commands under a lock, serves the agent, and has the commands of operators.
package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"

	"github.com/redis/go-redis/v9/logging"
	"github.com/spf13/cobra"

	"github.com/caddy-redlock/caddy-redlock/internal/base/version"
)

const (
	exitError = 1  // the exit code for errors without a code of their own
	codeUsage = 64 // EX_USAGE
)

func main() {
	logging.Disable() // it would print to standard error, which belongs to the command of redlock run
	os.Exit(execute(rootCmd()))
}

func rootCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:                   "redlock",
		Short:                 "Distributed locks on independent Redis masters",
		Version:               version.String(),
		Args:                  cobra.NoArgs,
		DisableFlagsInUseLine: true,
		SilenceErrors:         true,
		SilenceUsage:          true,
		RunE:                  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.SetVersionTemplate("caddy-redlock {{.Version}}\n")
	cmd.CompletionOptions.HiddenDefaultCmd = true
	cmd.AddCommand( // each has a file of its own
		agentCmd(),
		runCmd(),
		keyCmd(),
		conformanceCmd(),
	)
	cmd.AddCommand(operatorsCmds()...)
	return cmd
}

// coded is an error with an exit code of its own. If err is nil, nothing is printed.
type coded struct {
	code int
	err  error
}

func (c *coded) Error() string { return fmt.Sprint(c.err) }

func (c *coded) Unwrap() error { return c.err }

func execute(root *cobra.Command) int {
	out := &output{Writer: os.Stdout}
	root.SetOut(out)
	err := root.Execute()
	if err == nil {
		err = out.err
	}
	if err == nil {
		return 0
	}
	failed := &coded{code: exitError, err: err}
	errors.As(err, &failed)
	if failed.err != nil {
		tell("%v", failed.err)
	}
	return failed.code
}

// tell prints a line for the person who runs the command. It begins with the program's name, as errors of package redlock do, and has it once.
func tell(format string, args ...any) {
	fmt.Fprintln(os.Stderr, "redlock:", ownName.ReplaceAllString(fmt.Sprintf(format, args...), "$1"))
}

// ownName is the name of the program before an error, and not in a path or a key.
var ownName = regexp.MustCompile(`(^|: |\(|\n)(?:redlock: )+`)

// output remembers that something could not be written, such as to a disk that is full.
type output struct {
	io.Writer
	err error
}

func (o *output) Write(p []byte) (int, error) {
	n, err := o.Writer.Write(p)
	if o.err == nil {
		o.err = err
	}
	return n, err
}
