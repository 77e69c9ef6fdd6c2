package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/caddy-redlock/caddy-redlock/console"
	"github.com/caddy-redlock/caddy-redlock/internal/programs/connect"
	"github.com/caddy-redlock/caddy-redlock/internal/programs/doctor"
)

func (p *Program) masters() *cobra.Command {
	var flags asking
	var wait time.Duration
	cmd := &cobra.Command{
		Use:   "masters [--wait <duration>] " + p.Usage,
		Short: "Shows which masters grant locks to " + p.Whom + ", and why the others don't",
		Long: "\nShows which masters grant locks to " + p.Whom + `, and why the others don't. The exit
code is 2 if no locks can be taken, with --wait if none can within that time: a gate for a
start or a rollout.
` + p.Help,
		DisableFlagsInUseLine: true,
		Args:                  cobra.NoArgs,
		RunE: p.withCode(func(cmd *cobra.Command, _ []string) (int, error) {
			endpoint, err := flags.open()
			if err != nil {
				return exitError, err
			}
			defer endpoint.Close()
			ctx, stop := interruptible(cmd)
			defer stop()
			var status console.Status
			for deadline := time.Now().Add(wait); ; {
				var now console.Status // a new one: what it leaves out isn't so any more
				err := endpoint.Ask(ctx, http.MethodGet, "masters", nil, &now)
				if err == nil {
					status = now
				}
				if err == nil && status.Ready {
					break
				}
				if late := !time.Now().Add(waitInterval).Before(deadline); late && err != nil {
					return exitError, told(err)
				} else if late || !sleep(ctx, waitInterval) {
					break
				}
			}
			code := exitWell
			if !status.Ready {
				code = exitUnwell
			}
			var fleet console.Processes
			if err := endpoint.Ask(ctx, http.MethodGet, "processes", nil, &fleet); err != nil {
				fleet.Error = told(err).Error() // the masters are what was asked for
			}
			if flags.json {
				return code, printJSON(cmd.OutOrStdout(), struct {
					console.Status
					console.Processes
				}{status, fleet})
			}
			if len(status.Lockers) == 0 {
				return exitUnwell, errNoLocker
			}
			for _, locker := range status.Lockers {
				printLocker(cmd.OutOrStdout(), locker, time.Now())
			}
			printProcesses(cmd.OutOrStdout(), status.Lockers, fleet, time.Now())
			paragraph(cmd.OutOrStdout(), "", "caddy-redlock "+orDash(status.Version)) // one that is older doesn't say
			return code, nil
		}),
	}
	flags.add(cmd, p)
	connect.DurationVar(cmd.Flags(), &wait, "wait", "", 0, "Wait until locks can be taken, at most for this long")
	return cmd
}

// waitInterval is how often --wait looks.
const waitInterval = 200 * time.Millisecond

var errNoLocker = errors.New("the configuration of this Caddy has no redlock rule")

// printLocker prints what a locker knows of its masters.
func printLocker(out io.Writer, l console.Locker, now time.Time) {
	var rows [][]string
	heads := []string{"MASTER", "STATE", "RTT", "CLOCK", "VERSION", "EVICTION"}
	certified := slices.ContainsFunc(l.Masters, func(m console.Master) bool { return !m.CertificateUntil.IsZero() })
	if certified {
		heads = append(heads, "CERTIFICATE")
	}
	for _, m := range l.Masters {
		row := []string{m.Name, string(m.State), "-", "-", orDash(m.Version), orDash(m.MaxmemoryPolicy)}
		if certified {
			row = append(row, until(m.CertificateUntil))
		}
		if m.RoundTripSeconds > 0 {
			row[2], row[3] = span(seconds(m.RoundTripSeconds)), offset(seconds(m.ClockOffsetSeconds))
		}
		rows = append(rows, row)
	}
	table(out, heads, rows, 0)
	fmt.Fprintln(out)
	printTroubles(out, l, now)
	verdict := "locks can be taken"
	if !l.Ready {
		verdict = "NO LOCK CAN BE TAKEN"
	}
	paragraph(out, "", fmt.Sprintf("%s: %d of %s available, %d needed: %s; %d held, %d waiting.", l.Instance, l.Available, masterCount(len(l.Masters)), l.Quorum, verdict, l.Held, l.Waiting))
}

// until writes the last day of a certificate.
func until(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return "to " + t.UTC().Format(time.DateOnly)
}

// printTroubles prints what is wrong with masters, and once what is wrong with several.
func printTroubles(out io.Writer, l console.Locker, now time.Time) {
	ill := make(map[string][]string) // the masters, by what is wrong
	for _, m := range l.Masters {
		ill[m.Error] = append(ill[m.Error], m.Name)
	}
	for _, m := range l.Masters {
		if m.Error == "" || ill[m.Error] == nil {
			continue
		}
		text := strings.Join(ill[m.Error], ", ") + ": " + m.Error
		ill[m.Error] = nil
		switch since := span(max(0, now.Sub(m.Since))); {
		case m.Since.IsZero():
		case m.Until.IsZero():
			text += ", for " + since
		default:
			text += fmt.Sprintf(" (for %s so far; it grants locks again by itself in %s)", since, span(max(0, m.Until.Sub(now))))
		}
		paragraph(out, "", text)
	}
	warn := func(text string, of func(console.Master) bool) {
		var names []string
		for _, m := range l.Masters {
			if of(m) {
				names = append(names, m.Name)
			}
		}
		if len(names) > 0 {
			paragraph(out, "! ", strings.Join(names, ", ")+": "+text)
		}
	}
	warn("deletes locks when its memory is full. "+doctor.NoEviction, func(m console.Master) bool { return m.Evicts })
	warn("its certificate, or one that vouches for it, ends soon, and no connection can be made after that. "+doctor.RenewCertificate, func(m console.Master) bool {
		return !m.CertificateUntil.IsZero() && m.CertificateUntil.Sub(now) <= doctor.CertificateSoon
	})
	if _, told := ill[l.Error]; l.Error != "" && !told {
		paragraph(out, "", l.Error)
	}
}

// sleep waits, and reports whether the context has not ended before.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// printProcesses prints which processes share the masters.
func printProcesses(out io.Writer, lockers []console.Locker, fleet console.Processes, now time.Time) {
	var rows [][]string
	var silent []string
	differing := make(map[string]bool)
	for _, l := range lockers {
		for _, d := range l.Disagreements {
			differing[d.Text] = true
		}
	}
	for _, p := range fleet.Processes {
		row := []string{Printable(p.Instance), orDash(p.Version), "-", "-", "-", "-"}
		if p.Own {
			row[0] += " *"
		}
		if p.Version != "" {
			row[2], row[3] = strconv.Itoa(len(p.Masters)), span(seconds(p.MaxTTLSeconds))
			row[4], row[5] = span(max(0, now.Sub(p.Since))), span(max(0, now.Sub(p.Seen)))
		}
		if p.Ended {
			row[5] += ", ended"
		}
		if p.Silent {
			row[5] += ", silent"
			silent = append(silent, Printable(p.Instance))
		}
		if p.Disagreement != nil {
			row[2] += " !"
			differing[p.Disagreement.Text] = true
		}
		rows = append(rows, row)
	}
	if len(rows) > 0 {
		fmt.Fprintln(out)
		table(out, []string{"PROCESS", "VERSION", "MASTERS", "MAX_TTL", "RUNS", "SEEN"}, rows, 1, 0)
		fmt.Fprintln(out)
	}
	if len(silent) > 0 {
		paragraph(out, "! ", strings.Join(silent, ", ")+": silent, so it crashed or was killed, hangs, or is cut off from the masters. It is listed until its locks have ended.")
	}
	for _, text := range slices.Sorted(maps.Keys(differing)) {
		paragraph(out, "! ", text+": configure the same everywhere.")
	}
	switch ready := !slices.ContainsFunc(lockers, func(l console.Locker) bool { return !l.Ready }); {
	case fleet.Error == "":
	case ready:
		paragraph(out, "", "Processes may be missing: "+fleet.Error)
	default:
		paragraph(out, "", "Processes may be missing: too few masters answer.")
	}
}
