package main

import (
	"errors"
	"fmt"
	"regexp"
	"runtime"
	"strings"
	"sync"

	"github.com/spf13/cobra"

	"github.com/caddy-redlock/caddy-redlock/clients"
	"github.com/caddy-redlock/caddy-redlock/internal/programs/conformance"
)

func conformanceCmd() *cobra.Command {
	var only string
	cmd := &cobra.Command{
		Use:   "conformance [flags] -- command [argument…]",
		Short: "Tests a client of the agent, in any language",
		Long: `
Tests a client of the agent, in any language: calls a command for each case, several at
the same time. The command is a small program that runs the client and prints what becomes
of it. No Redis is needed: the agents are in this process.

The program gets options in its environment, which may be missing or empty:

  ADDRESS          the agent: a path of a Unix socket, which has a /, or host:port
  TOKEN            the token
  WAIT, TTL, MAX_HOLD, PATIENCE    in seconds, such as 0.01
  CONCURRENCY      a number
  VALUES           a name, = and a value: the keys are templates
  STOP             a path: the program ends its work when a file is there
  SLOWLY           not empty: the work of once_per and once prints works, and lasts until
                   STOP is there

Its arguments are a mode and keys. It prints each line at once, and exits with 0:

  hold KEY…        locks all keys together, prints held and the fence, or the slot if there
                   is CONCURRENCY; then asks every 20 ms whether the lock is held, until
                   STOP is there; releases it, and prints done
  after KEY        the same, but after the release it asks once more: the answer must be
                   LockLost
  once_per KEY     does work once per hour: prints ran true, or ran false if it was done
                   before, and done
  once KEY         does work whose value is {"paid":true}, and keeps it for an hour: prints
                   value and the value that it or an earlier call has returned, as JSON
                   without spaces, and done
  once_per KEY TEXT, once KEY TEXT
                   the same with work that fails: with LockDone and this text if it is
                   "not mine", and otherwise with LockError and this text

An error is the last line:

  refused SECONDS       LockHeld, with its Retry-After
  unavailable SECONDS   LockUnavailable, with its Retry-After, or 0 if there is none
  lost MS TEXT          LockLost: the time on the wall clock, in milliseconds since 1970,
                        just before the last question whose answer was that the lock is
                        held, or 0
  already TEXT          LockDone
  forgotten VALUE TEXT  LockNotRemembered: the value as JSON without spaces; for once_per any
  error TEXT            any other error of the lock; the text has the agent's detail, and
                        may have more
  skip                  the client can't do this; print it for each mode that is missing

A failed case shows what was wanted, what was printed, and what the program and the agent
have sent. The exit code is 1 if a case has failed, or if none has passed.`,
		Example:               `  redlock conformance -- perl worker.pl`,
		Args:                  cobra.MinimumNArgs(1),
		DisableFlagsInUseLine: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			cases, err := conformance.Parse(clients.Cases)
			if err != nil {
				return err
			}
			chosen, err := regexp.Compile(only)
			if err != nil {
				return fmt.Errorf("--only: %w", err)
			}
			return judge(cmd, cases, chosen, conformance.Command{Args: args})
		},
	}
	cmd.Flags().SetInterspersed(false)
	cmd.Flags().StringVar(&only, "only", "", "Run the cases whose names match this regular expression")
	return cmd
}

// judge runs the cases, some at the same time, and prints how each has ended, in their order.
func judge(cmd *cobra.Command, cases []conformance.Case, chosen *regexp.Regexp, command conformance.Command) error {
	var passed, skipped, failed int
	results := make([]chan error, len(cases))
	ctx, cancel := untilSignaled(cmd.Context())
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	slots := make(chan struct{}, max(4, runtime.GOMAXPROCS(0))) // most of them wait for most of the time
	for i := range cases {
		results[i] = make(chan error, 1)
		if !chosen.MatchString(cases[i].Name) {
			continue
		}
		running.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			err := ctx.Err()
			if err == nil {
				err = cases[i].Run(ctx, command)
			}
			results[i] <- err
		})
	}
	for i, c := range cases {
		if !chosen.MatchString(c.Name) {
			continue
		}
		out := cmd.OutOrStdout()
		switch err := <-results[i]; {
		case ctx.Err() != nil:
			return errors.New("interrupted")
		case err == nil:
			passed++
			_, _ = fmt.Fprintln(out, "ok   ", c.Name)
		case errors.Is(err, conformance.ErrSkipped):
			skipped++
			_, _ = fmt.Fprintln(out, "skip ", c.Name)
		default:
			failed++
			_, _ = fmt.Fprintf(out, "FAIL  %s\n      %s\n", c.Name, strings.ReplaceAll(strings.TrimSpace(err.Error()), "\n", "\n      "))
		}
	}
	_, _ = fmt.Fprintf(cmd.OutOrStdout(), "%d passed, %d skipped, %d failed\n", passed, skipped, failed)
	if failed > 0 || passed == 0 {
		return &coded{code: exitError}
	}
	return nil
}
