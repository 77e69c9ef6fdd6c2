//go:build unix

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/caddy-redlock/caddy-redlock/internal/base/lockname"
	"github.com/caddy-redlock/caddy-redlock/internal/programs/connect"
	"github.com/caddy-redlock/caddy-redlock/internal/programs/job"
	"github.com/caddy-redlock/caddy-redlock/redlock"
)

// The exit codes of redlock run beside codeUsage and the command's own; docs/jobs.md has them, too.
const (
	codeNoQuorum = 69 // EX_UNAVAILABLE
	codeLost     = 70 // EX_SOFTWARE
	codeHeld     = 75 // EX_TEMPFAIL
)

func init() {
	if filepath.Base(os.Args[0]) == job.GuardName {
		os.Exit(job.Guard())
	}
	runtime.LockOSThread() // job.Run, which starts the command, needs the thread of main
}

type runCommand struct {
	masters  connect.Settings
	agent    string // "": on the masters
	wait     time.Duration
	waits    bool // --wait was given
	try      bool
	ttl      time.Duration
	maxHold  time.Duration
	period   time.Duration
	attempts int
	most     int // --concurrency
	heldCode int
	skipCode int
	quiet    bool
	after    time.Duration // --kill-after

	own     []string // the variables of the flags above: what they say is about this lock alone
	key     string
	command []string
	flags   *pflag.FlagSet
}

// name returns what the user has written to set a flag.
func (c *runCommand) name(flag string) string { return connect.Name(c.flags, flag) }

func runCmd() *cobra.Command {
	c := new(runCommand)
	cmd := &cobra.Command{
		Use:   "run [flags] KEY -- command [argument…]",
		Short: "Runs a command under a lock, on one machine at a time",
		Long: `
Runs a command under the lock on KEY: of all machines with these masters, one at a time.
The others wait in line. The lock is renewed while the command runs. If it can't be, or is
lost, the command gets TERM, and then KILL: by default so early that it is gone before
anybody else can have the lock. The command is killed if redlock is.

The command has REDLOCK_KEY, REDLOCK_FENCE and REDLOCK_DEADLINE in its environment, and
with --concurrency REDLOCK_SLOT, from 0 on. It doesn't inherit the variables of flags that
are about this lock alone, such as REDLOCK_WAIT and REDLOCK_ONCE_PER. The exit code is that
of the command, 128 and the number of the signal that ended it, or

  64   wrong use           69   too few masters answer
  70   the lock was lost   75   another has the lock (-E)
  126  the command can't be started          127  it doesn't exist
` + connect.Help,
		Example: `  redlock run --wait 30s invoices -- /usr/local/bin/send-invoices
  redlock run --once-per 1h --skip-code 0 report -- ./report.sh`,
		Args: func(_ *cobra.Command, args []string) (err error) {
			c.key, c.command, err = jobOf(args)
			return err
		},
		DisableFlagsInUseLine: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			err := c.source(cmd.Flags())
			if err == nil {
				err = c.check()
			}
			if err != nil {
				return &coded{codeUsage, err}
			}
			return c.run()
		},
	}
	flags := cmd.Flags()
	c.flags = flags
	flags.SetInterspersed(false)
	connect.DurationVar(flags, &c.wait, "wait", "w", 0, "How long to wait for the lock (default: forever, but 1m for masters)")
	flags.BoolVarP(&c.try, "try", "n", false, "Don't wait for other holders: as --wait 0s")
	connect.DurationVar(flags, &c.ttl, "ttl", "", 0, "How long the lock stays taken if this machine dies (default: 10s, or max-ttl)")
	connect.DurationVar(flags, &c.maxHold, "max-hold", "", 0, "How long the command may run before it gets TERM, and KILL after --kill-after (default: until it ends)")
	connect.DurationVar(flags, &c.after, "kill-after", "k", 0, "Time between TERM and KILL when the lock is lost; at most half of the ttl (default: a fifth of it)")
	flags.IntVar(&c.most, "concurrency", 1, "How many commands may have the lock at a time, each with a slot of its own")
	connect.DurationVar(flags, &c.period, "once-per", "", 0, "After a success, don't run it again for this long, on any machine; nor wait for longer")
	flags.IntVar(&c.attempts, "attempts", 0, "With 1, --once-per doesn't run it again after a failure either (default: until it succeeds)")
	flags.IntVarP(&c.heldCode, "conflict-exit-code", "E", codeHeld, "Exit code if another has the lock")
	flags.IntVar(&c.skipCode, "skip-code", codeHeld, "Exit code if --once-per finds that it is done (default: as -E)")
	flags.VisitAll(func(f *pflag.Flag) { c.own = append(c.own, connect.Variable(f.Name)) })
	flags.BoolVarP(&c.quiet, "quiet", "q", false, "Don't say that another has the lock, or that it is done")
	flags.StringVar(&c.agent, "agent", "", "Socket of an agent that takes the lock, such as unix:/run/redlock/redlock.sock; or REDLOCK_AGENT")
	c.masters.AddFlags(flags)
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return &coded{codeUsage, err} })
	return cmd
}

func jobOf(args []string) (key string, command []string, err error) {
	const usage = "want redlock run [flags] KEY -- command [argument…]"
	switch {
	case len(args) == 0 || args[0] == "":
		err = errors.New("no key: " + usage)
	case len(args) > 1 && args[1] == "--":
		key, command = args[0], args[2:]
	case len(args) > 1 && strings.HasPrefix(args[1], "-"):
		err = fmt.Errorf("%s comes after the key, and flags come before it: %s", args[1], usage)
	default:
		key, command = args[0], args[1:]
	}
	if err == nil && len(command) == 0 {
		err = errors.New("no command: " + usage)
	}
	if err != nil {
		err = &coded{codeUsage, err}
	}
	return key, command, err
}

// source reads the environment, and decides whether to ask an agent: the one of --agent or REDLOCK_AGENT, unless the flags name masters.
func (c *runCommand) source(flags *pflag.FlagSet) error {
	if flags.Changed("agent") && (flags.Changed("masters") || flags.Changed("masters-file")) {
		return errors.New("--agent and --masters: want one of them")
	}
	return connect.WholeEnvironment(flags)
}

// check returns an error in the settings, and sets the defaults that depend on others.
func (c *runCommand) check() error {
	given := func(flag string) bool { return connect.IsSet(c.flags, flag) }
	c.waits = given("wait")
	if c.ttl == 0 {
		c.ttl = redlock.DefaultTTL
		if most := c.masters.MaxTTL; most > 0 {
			c.ttl = min(c.ttl, most)
		}
	}
	if !given("kill-after") {
		c.after = c.ttl / 5
	}
	if !given("skip-code") {
		c.skipCode = c.heldCode
	}
	switch {
	case len(c.key) > redlock.MaxKeyLength:
		return fmt.Errorf("key of %d bytes: must have at most %d: use a hash of it", len(c.key), redlock.MaxKeyLength)
	case !utf8.ValidString(c.key) || strings.ContainsRune(c.key, utf8.RuneError):
		return errors.New("key: not UTF-8, or with the character U+FFFD: an agent would refuse it")
	case c.wait < 0:
		return fmt.Errorf("%s %v: want 0s or more", c.name("wait"), c.wait)
	case c.try && c.waits:
		return errors.New("--try doesn't wait: want it without --wait")
	case c.after < 0 || c.after > c.ttl/2:
		return fmt.Errorf("%s %v: want at most %v, half of the ttl: the command has to be gone before the lease is over", c.name("kill-after"), c.after, c.ttl/2)
	case c.period < 0 || given("once-per") && c.period < redlock.MinPeriod:
		return fmt.Errorf("%s %v: want a second at least", c.name("once-per"), c.period)
	case c.most < 1 || c.most > redlock.MaxConcurrency:
		return fmt.Errorf("%s %d: want a number from 1 to %d", c.name("concurrency"), c.most, redlock.MaxConcurrency)
	case c.most > 1 && c.period > 0:
		return errors.New("--once-per is for one command at a time: want it without --concurrency")
	case c.maxHold < 0:
		return fmt.Errorf("%s %v: want more than 0s", c.name("max-hold"), c.maxHold)
	case given("attempts") && (c.attempts != 1 || c.period == 0):
		return fmt.Errorf("%s %d: want 1, with --once-per: or leave it out, for as many as it takes", c.name("attempts"), c.attempts)
	case given("skip-code") && c.period == 0:
		return errors.New("--skip-code belongs to --once-per")
	case c.heldCode < 0 || c.heldCode > 255 || c.skipCode < 0 || c.skipCode > 255:
		return errors.New("an exit code is a number between 0 and 255")
	}
	return nil
}

func (c *runCommand) run() error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	signals := job.Catch(cancel)
	defer signals.Close()
	held, err := c.acquire(ctx)
	if err != nil {
		if sig := signals.Ended(); sig != 0 {
			job.Die(sig)
			return &coded{128 + int(sig), nil}
		}
		return c.refused(err)
	}
	first := held.lease.Until()
	j := job.Job{Command: c.command, Env: c.environment(held), KillAfter: c.after}
	result, err := j.Run(held.lease, signals)
	heldFor := c.maxHold > 0 && (errors.Is(result.Lost, redlock.ErrMaxHold) ||
		(errors.Is(result.Lost, job.ErrLate) || errors.Is(result.Lost, errLeaseEnded)) && !time.Now().Before(first.Add(c.maxHold-c.ttl))) // the lease began at first less the ttl, or later
	freed := held.free(err == nil && c.period > 0 && result.Lost == nil && (result.Code == 0 || c.attempts == 1))
	var failed *job.StartError
	switch {
	case errors.As(err, &failed):
		return &coded{failed.Code, err}
	case err != nil:
		return err
	case result.Lost == nil && endedBefore(freed):
		result.Lost = freed
	case result.Lost == nil && freed != nil:
		tell("the lock on %s: %v", c.key, freed)
	}
	if result.LeftBehind {
		tell("the command has ended, and has left processes that still run, without the lock on %s: it must not put itself into the background", c.key)
	}
	if heldFor {
		return &coded{codeLost, fmt.Errorf("the command was ended: it has had the lock on %s for --max-hold %v", c.key, c.maxHold)}
	}
	if result.Lost != nil {
		return &coded{codeLost, fmt.Errorf("the lock on %s was lost before the command had ended: %w", c.key, result.Lost)}
	}
	if result.Signal != 0 {
		job.Die(result.Signal)
	}
	if result.Code != 0 {
		return &coded{result.Code, nil}
	}
	return nil
}

// lockHold returns how long the lock may be held; 0 means until the command ends. A command that gets TERM after --max-hold keeps the
// lock until it is killed.
func (c *runCommand) lockHold() time.Duration {
	if c.maxHold == 0 {
		return 0
	}
	return c.maxHold + c.after
}

// endedBefore reports whether an error of the release says that the lock had ended before, so that another process may have had the lock.
func endedBefore(err error) bool {
	return errors.Is(err, redlock.ErrExpired) || errors.Is(err, redlock.ErrNotOwner) || errors.Is(err, redlock.ErrLost)
}

// environment returns the variables that the command has besides those of this process. It takes away those that are about this lock
// alone, because a redlock run within the command would take them for its own.
func (c *runCommand) environment(held *holding) []string {
	for _, variable := range append(c.own, "REDLOCK_SLOT") {
		_ = os.Unsetenv(variable)
	}
	env := []string{
		"REDLOCK_KEY=" + c.key,
		fmt.Sprintf("REDLOCK_FENCE=%d", held.fence),
		"REDLOCK_DEADLINE=" + held.lease.Until().UTC().Format(time.RFC3339Nano),
	}
	if c.most > 1 {
		env = append(env, fmt.Sprintf("REDLOCK_SLOT=%d", held.slot))
	}
	if held.slot == 0 {
		all := heldAbove()
		all[lockname.Of(c.key)] = held.fence
		if text, err := json.Marshal(all); err == nil {
			env = append(env, heldVariable+"="+string(text))
		}
	}
	return env
}

// refused returns the error to print, with its exit code, if the lock can't be had.
func (c *runCommand) refused(err error) error {
	switch {
	case errors.Is(err, redlock.ErrNoQuorum) && errors.Is(err, redlock.ErrRestarted):
		return &coded{codeNoQuorum, fmt.Errorf("%w (%s)", err, guardOff)}
	case errors.Is(err, redlock.ErrDone):
		return &coded{c.skipCode, c.because(c.skipCode, "it is done: %s has run in this period", c.key)}
	case errors.Is(err, redlock.ErrNoQuorum), errors.Is(err, redlock.ErrUnreadable):
		return &coded{codeNoQuorum, err}
	case errors.Is(err, redlock.ErrHeld) && c.most > 1:
		return &coded{c.heldCode, c.because(c.heldCode, "all %d slots of %s are taken", c.most, c.key)}
	case errors.Is(err, redlock.ErrHeld):
		return &coded{c.heldCode, c.because(c.heldCode, "another has the lock on %s", c.key)}
	case errors.Is(err, redlock.ErrTooManyWaiters), errors.Is(err, redlock.ErrBusy), errors.Is(err, context.DeadlineExceeded), errors.Is(err, redlock.ErrClosed): // nothing is known of the lock
		return &coded{codeNoQuorum, err}
	case errors.As(err, new(*coded)):
		return err
	}
	return &coded{codeUsage, connect.Named(err, func(option string) string { return c.name(strings.ReplaceAll(option, " ", "-")) })} // any other error is about the call, such as its key
}

// because returns why the command doesn't run. It returns nil with --quiet, and for a success of which nobody at a terminal reads: cron would mail it.
func (c *runCommand) because(code int, format string, args ...any) error {
	if c.quiet || code == 0 && !isTerminal(os.Stderr) {
		return nil
	}
	return fmt.Errorf(format, args...)
}

func isTerminal(file *os.File) bool {
	info, err := file.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}
