package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/caddy-redlock/caddy-redlock/console"
)

const (
	locksShown    = 100  // without --limit
	locksWatched  = 18   // without --limit, with --watch: a terminal has 24 lines
	locksAtOnce   = 1000 // what the endpoint gives at once, at most
	watchInterval = time.Second
)

// clearScreen moves the cursor home and clears what is below it.
const clearScreen = "\x1b[H\x1b[J"

type locksCommand struct {
	asking
	prefix string
	sort   string
	limit  int
	calls  bool
	watch  bool
}

// Locks is the command that lists the keys of a process.
func (p *Program) Locks() *cobra.Command {
	var c locksCommand
	cmd := &cobra.Command{
		Use:   "locks [--prefix <text>] [--sort waiting|key] [--calls] [--watch] [--limit <n>] " + p.Usage,
		Short: "Lists the keys that " + p.Whom + " holds or waits for",
		Long: "\nLists the keys that " + p.Whom + ` holds or waits for. Keys of other processes are not
listed: ask each of them, or inspect a key. Those come first for which most requests
wait, and of these the oldest; --sort key lists them by name. With --calls, the requests
that wait for a key are listed below it, 20 at the most.

With --watch, the list is drawn anew each second, until Ctrl-C; if it does not go to a
terminal, each list follows the last. With --json, that is one JSON object in each line.
` + p.Help,
		Example:               "  " + p.Name + " locks --prefix order: --watch",
		DisableFlagsInUseLine: true,
		Args:                  cobra.NoArgs,
		RunE:                  p.withCode(func(cmd *cobra.Command, _ []string) (int, error) { return c.run(cmd) }),
	}
	c.add(cmd, p)
	cmd.Flags().StringVarP(&c.prefix, "prefix", "p", "", "Only keys that begin so")
	cmd.Flags().StringVar(&c.sort, "sort", "waiting", "By what the keys are sorted: waiting or key")
	cmd.Flags().BoolVar(&c.calls, "calls", false, "Lists the requests that wait, too")
	cmd.Flags().IntVarP(&c.limit, "limit", "n", 0, fmt.Sprintf("How many keys are listed (default: %d, or %d with --watch)", locksShown, locksWatched))
	cmd.Flags().BoolVarP(&c.watch, "watch", "w", false, "Draw the list anew each second, until Ctrl-C")
	return cmd
}

func (c *locksCommand) run(cmd *cobra.Command) (int, error) {
	if c.limit < 0 {
		return exitError, fmt.Errorf("--limit %d: want a number above 0", c.limit)
	}
	switch {
	case c.sort != "waiting" && c.sort != "key":
		return exitError, fmt.Errorf("--sort %s: want waiting or key", c.sort)
	case c.sort == "waiting" && c.limit > locksAtOnce:
		return exitError, fmt.Errorf("--limit %d: at most %d keys are sorted by waiting; --sort key lists any number", c.limit, locksAtOnce)
	}
	if c.limit == 0 {
		c.limit = map[bool]int{true: locksWatched, false: locksShown}[c.watch]
	}
	endpoint, err := c.open()
	if err != nil {
		return exitError, err
	}
	defer endpoint.Close()
	ctx, stop := interruptible(cmd)
	defer stop()
	out := cmd.OutOrStdout()
	if c.watch {
		c.watchLocks(ctx, endpoint, out)
		return exitWell, nil
	}
	locks, err := c.list(ctx, endpoint)
	if err != nil {
		return exitError, told(err)
	}
	if c.json {
		return exitWell, printJSON(out, locks)
	}
	c.print(out, locks, time.Now())
	return exitWell, nil
}

// list asks for as many keys as the limit says, which may take several requests.
func (c *locksCommand) list(ctx context.Context, endpoint Endpoint) (all console.Locks, err error) {
	all.Locks = []console.Lock{}
	query := url.Values{"sort": {c.sort}}
	if c.prefix != "" {
		query.Set("prefix", c.prefix)
	}
	for {
		query.Set("limit", strconv.Itoa(min(locksAtOnce, c.limit-len(all.Locks))))
		var page console.Locks
		if err := endpoint.Ask(ctx, http.MethodGet, "locks", query, &page); err != nil {
			return all, err
		}
		page.Locks = append(all.Locks, page.Locks...)
		all = page
		next, err := url.Parse(page.Next)
		if err != nil || page.Next == "" || len(all.Locks) >= c.limit {
			return all, nil
		}
		query = next.Query()
	}
}

// watchLocks draws the list again and again, whatever happens to the process meanwhile.
func (c *locksCommand) watchLocks(ctx context.Context, endpoint Endpoint, out io.Writer) {
	width := widthOf(out)
	for {
		locks, err := c.list(ctx, endpoint)
		if ctx.Err() != nil {
			return
		}
		now := time.Now()
		var text bytes.Buffer // is written at once, so that nothing flickers
		switch {
		case c.json && err != nil:
			_ = json.NewEncoder(&text).Encode(map[string]string{"error": told(err).Error()})
		case c.json:
			_ = json.NewEncoder(&text).Encode(locks)
		default:
			if width > 0 {
				text.WriteString(clearScreen)
			}
			fmt.Fprintf(&text, "%s\n\n", now.Format("2006-01-02 15:04:05"))
			if err != nil {
				paragraph(&text, "", told(err).Error())
			} else {
				c.print(sized{&text, width}, locks, now)
			}
			text.WriteString("\n")
		}
		if _, err := out.Write(text.Bytes()); err != nil || !sleep(ctx, watchInterval) {
			return
		}
	}
}

// print prints a list of keys, for people.
func (c *locksCommand) print(out io.Writer, locks console.Locks, now time.Time) {
	var rows [][]string
	heads := []string{"KEY", "LABEL", "STATE", "LEASE", "FENCE", "WAITING"}
	if slices.ContainsFunc(locks.Locks, func(l console.Lock) bool { return l.Request != nil }) {
		heads = append(heads, "REQUEST")
	}
	for _, l := range locks.Locks {
		row := []string{Printable(l.Key), orDash(l.Label), "waits", "-", "-", strconv.Itoa(l.Waiting)}
		if l.Held {
			row[2], row[3], row[4] = "held", span(max(0, l.Until.Sub(now))), strconv.FormatUint(l.Fence, 10)
		}
		if !l.Since.IsZero() {
			row[2] += " " + span(max(0, now.Sub(l.Since)))
		}
		if l.Slot != nil {
			row[2] += fmt.Sprintf(", slot %d of %d", *l.Slot, l.Slots)
		}
		if len(heads) > len(row) {
			row = append(row, orDash(l.Request.String()))
		}
		rows = append(rows, row)
		if !c.calls {
			continue
		}
		for _, call := range l.Line {
			row := []string{"", orDash(call.Label), "waits " + span(max(0, now.Sub(call.Since))), "-", "-", "-"}
			if len(heads) > len(row) {
				row = append(row, orDash(call.Request.String()))
			}
			rows = append(rows, row)
		}
	}
	if len(rows) > 0 {
		table(out, heads, rows, 1, len(heads)-1, 0)
		fmt.Fprintln(out)
	}
	more := ""
	if shown := len(locks.Locks); locks.Keys > shown {
		more = fmt.Sprintf("; %d of %d keys are shown, see --limit and --prefix", shown, locks.Keys)
	}
	fmt.Fprintf(out, "%d held, %d waiting%s\n", locks.Held, locks.Waiting, more)
}
