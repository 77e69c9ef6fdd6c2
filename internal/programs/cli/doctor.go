package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/caddy-redlock/caddy-redlock/internal/programs/connect"
	"github.com/caddy-redlock/caddy-redlock/internal/programs/doctor"
)

// Doctor is the command that looks at the masters which the flags lead to. help says which these are. examine may wait for patience for each reply of a
// master.
func (p *Program) Doctor(usage, help string, add func(*pflag.FlagSet),
	examine func(ctx context.Context, flags *pflag.FlagSet, patience time.Duration) (doctor.Report, error)) *cobra.Command {
	var patience time.Duration
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "doctor " + usage + " [--patience <duration>] [--json]",
		Short: "Looks at the masters, and says what to do about what it finds",
		Long: `
Looks at the masters, and says what to do about what it finds: whether they can be reached, in time, with the rights that locks need; whether they are
independent; their version, mode, persistence, eviction, clocks, uptime and certificates.

No lock is taken. On each master one key of a name of its own is written, for a second at
most, and removed. The exit code is 2 if there is an error or a warning. Notes don't count.
` + help,
		DisableFlagsInUseLine: true,
		Args:                  cobra.NoArgs,
		RunE: p.withCode(func(cmd *cobra.Command, _ []string) (int, error) {
			if patience <= 0 {
				return exitError, fmt.Errorf("--patience %v: want more than 0", patience)
			}
			ctx, stop := interruptible(cmd)
			defer stop()
			report, err := examine(ctx, cmd.Flags(), patience)
			if ctx.Err() != nil {
				return exitError, errors.New("interrupted")
			}
			if err != nil {
				return exitError, err
			}
			code := exitWell
			if !report.Healthy() {
				code = exitUnwell
			}
			if asJSON {
				return code, printJSON(cmd.OutOrStdout(), report)
			}
			printReport(cmd.OutOrStdout(), report)
			return code, nil
		}),
	}
	add(cmd.Flags())
	connect.DurationVar(cmd.Flags(), &patience, "patience", "", doctor.DefaultPatience, "How long to wait for each reply of a master")
	cmd.Flags().BoolVar(&asJSON, "json", false, "Print JSON")
	return cmd
}

// printReport prints what doctor has found, for people.
func printReport(out io.Writer, report doctor.Report) {
	var rows [][]string
	heads := []string{"MASTER", "VERSION", "RTT", "CLOCK", "UPTIME", "VOTES"}
	certified := slices.ContainsFunc(report.Masters, func(m doctor.MasterReport) bool { return !m.CertificateUntil.IsZero() })
	if certified {
		heads = append(heads, "CERTIFICATE")
	}
	for _, m := range report.Masters {
		row := []string{m.Name, orDash(m.Version), "-", "-", "-", "no"}
		if m.RoundTrip > 0 {
			row[2], row[3] = span(seconds(m.RoundTrip)), offset(seconds(m.ClockOffset))
		}
		if m.Version != "" {
			row[4] = span(time.Duration(m.Uptime) * time.Second)
		}
		if m.Votes {
			row[5] = "yes"
		}
		if certified {
			row = append(row, until(m.CertificateUntil))
		}
		rows = append(rows, row)
	}
	table(out, heads, rows, 0)
	fmt.Fprintln(out)
	for _, level := range []doctor.Level{doctor.Error, doctor.Warning, doctor.Note} {
		for i, f := range report.Findings {
			same := func(other doctor.Finding) bool {
				return other.Level == level && other.Text == f.Text && other.Advice == f.Advice
			}
			if !same(f) || slices.IndexFunc(report.Findings, same) < i { // a line for all masters of which it is true
				continue
			}
			var names []string
			for _, other := range report.Findings {
				if same(other) && other.Master != "" {
					names = append(names, other.Master)
				}
			}
			text := f.Text
			if len(names) > 0 {
				text = strings.Join(names, ", ") + ": " + text
			}
			paragraph(out, fmt.Sprintf("%-9s", level), text)
			paragraph(out, fmt.Sprintf("%-9s", ""), f.Advice)
		}
	}
	if len(report.Findings) > 0 {
		fmt.Fprintln(out)
	}
	verdict := "locks can be taken"
	if report.Voting < report.Quorum {
		verdict = "NO LOCK CAN BE TAKEN"
	} else if slices.ContainsFunc(report.Findings, func(f doctor.Finding) bool { return f.Check == doctor.Processes && f.Level == doctor.Error }) {
		verdict = "NO LOCK CAN BE TAKEN beside the running processes"
	}
	fmt.Fprintf(out, "%d of %s would grant locks now, %d needed: %s.\n", report.Voting, masterCount(len(report.Masters)), report.Quorum, verdict)
}

func masterCount(n int) string {
	if n == 1 {
		return "1 master"
	}
	return fmt.Sprintf("%d masters", n)
}
