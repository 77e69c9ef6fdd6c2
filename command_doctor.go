package caddyredlock

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/spf13/cobra"

	"github.com/caddy-redlock/caddy-redlock/internal/doctor"
	"github.com/caddy-redlock/caddy-redlock/internal/masters"
	"github.com/caddy-redlock/caddy-redlock/redlock"
)

func doctorCmd() *cobra.Command {
	var config configFlags
	var patience time.Duration
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "doctor [--config <path>] [--adapter <name>] [--patience <duration>] [--json]",
		Short: "Looks at the masters of a configuration, and says what to do about what it finds",
		Long: `
Looks at the masters of a configuration, and says what to do about what it finds:
whether they can be reached, in time, with the rights that locks need; whether they are
independent; their version, mode, persistence, eviction, clocks and uptime.

Caddy need not run. Placeholders are replaced and secrets read as Caddy would do it, so
run it as Caddy's user, with its environment. No lock is taken. On each master one key of
a name of its own is written, for a second at most, and removed.

The exit code is 2 if there is an error or a warning. Notes don't count.`,
		Example:               `  caddy redlock doctor --config /etc/caddy/Caddyfile`,
		DisableFlagsInUseLine: true,
		Args:                  cobra.NoArgs,
		RunE: withCode(func(cmd *cobra.Command, _ []string) (int, error) {
			if patience <= 0 {
				return exitError, fmt.Errorf("--patience %v: want more than 0", patience)
			}
			text, err := config.load()
			if err != nil {
				return exitError, err
			}
			ctx, stop := interruptible(cmd)
			defer stop()
			settings, err := doctorSettings(ctx, text)
			if err != nil {
				return exitError, err
			}
			settings.Patience = patience
			report := doctor.Examine(ctx, settings)
			if ctx.Err() != nil {
				return exitError, errors.New("interrupted")
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
	config.add(cmd)
	cmd.Flags().DurationVar(&patience, "patience", doctor.DefaultPatience, "How long to wait for each answer of a master")
	cmd.Flags().BoolVar(&asJSON, "json", false, "Print JSON")
	return cmd
}

// doctorSettings returns what doctor needs to know of a configuration.
func doctorSettings(ctx context.Context, text []byte) (doctor.Settings, error) {
	var config struct {
		Apps struct {
			HTTP    any             `json:"http"`
			Redlock json.RawMessage `json:"redlock"`
		} `json:"apps"`
	}
	if err := json.Unmarshal(text, &config); err != nil {
		return doctor.Settings{}, fmt.Errorf("configuration: %w", err)
	}
	app := new(App)
	if config.Apps.Redlock != nil {
		if err := caddy.StrictUnmarshalJSON(config.Apps.Redlock, app); err != nil {
			return doctor.Settings{}, fmt.Errorf("the app redlock: %w", err)
		}
	}
	caddyContext, cancel := caddy.NewContext(caddy.Context{Context: ctx})
	defer cancel()
	resolved, err := app.resolved(caddyContext)
	if err != nil {
		return doctor.Settings{}, app.Source.at(err)
	}
	examined, err := masters.Examined(resolved.URLs, resolved.secure())
	if err != nil {
		return doctor.Settings{}, err
	}
	s := doctor.Settings{
		Masters:  examined,
		Timeout:  resolved.Timeout,
		LeastTTL: min(redlock.DefaultTTL, resolved.MaxTTL),
		Guard:    resolved.Guard,
		MaxSkew:  resolved.MaxSkew,
		Prefix:   resolved.Prefix,
	}
	eachRule(config.Apps.HTTP, func(rule map[string]any) {
		if ttl := durationOf(rule["ttl"]); ttl > 0 {
			s.LeastTTL = min(s.LeastTTL, ttl)
		}
		s.Remember = s.Remember || durationOf(rule["remember"]) > 0 || rule["remember"] == nil && rule["preset"] == "idempotency-key"
	})
	return s, nil
}

// eachRule calls found with the settings of each rule, however deep it is nested.
func eachRule(config any, found func(rule map[string]any)) {
	switch config := config.(type) {
	case []any:
		for _, item := range config {
			eachRule(item, found)
		}
	case map[string]any:
		if config["handler"] == "redlock" {
			found(config)
		}
		for _, item := range config {
			eachRule(item, found)
		}
	}
}

// durationOf reads a duration as Caddy does, or returns 0.
func durationOf(setting any) time.Duration {
	var d caddy.Duration
	if text, err := json.Marshal(setting); err != nil || json.Unmarshal(text, &d) != nil {
		return 0
	}
	return time.Duration(d)
}

// printReport prints what doctor has found, for people.
func printReport(out io.Writer, report doctor.Report) {
	var rows [][]string
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
		rows = append(rows, row)
	}
	table(out, []string{"MASTER", "VERSION", "RTT", "CLOCK", "UPTIME", "VOTES"}, rows, 0)
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
	}
	fmt.Fprintf(out, "%d of %s would grant locks now, %d needed: %s.\n", report.Voting, masterCount(len(report.Masters)), report.Quorum, verdict)
}

func masterCount(n int) string {
	if n == 1 {
		return "1 master"
	}
	return fmt.Sprintf("%d masters", n)
}
