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
Tests a client of the agent, in any language: calls a command for each case, which runs
the client and prints what becomes of it. docs/protocol.md says how the command is called,
and what it must print. No Redis is needed: the agents are in this process.

The exit code is 1 if a case has failed, or if none has passed.`,
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
