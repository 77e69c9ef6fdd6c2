package cli

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/caddy-redlock/caddy-redlock/console"
	"github.com/caddy-redlock/caddy-redlock/internal/base/lockname"
	"github.com/caddy-redlock/caddy-redlock/redlock/inspect"
)

func (p *Program) inspect() *cobra.Command {
	var flags asking
	var delivery deliveryFlags
	var slot slotFlag
	var hash string
	cmd := &cobra.Command{
		Use:   "inspect [--slot <n>] " + deliveryFlagsUsage + " " + p.Usage + " (<key>... | --hash <key_hash>)",
		Short: "Shows a key as each master sees it: who holds it, who waits, what is remembered",
		Long: `
Shows a key as each master sees it: who holds it, until when, and who waits; and whether
a response is remembered for it. The holder may be any process with the same masters; its
instance name says which.

The key is written as in {http.redlock.key} and in caddy redlock locks: without the prefix.
Of a key that several may hold, each slot that is taken is shown; --slot shows one of them
as each master sees it. The exit code is 3 if nobody holds the key, and too few masters
remember a response for it.

Logs name a key by its key_hash. --hash finds the key among those that the process which is
asked holds or waits for: ask the one whose log it is. The exit code is 3 if it has no such key.
` + deliveryFlagsHelp + "\n" + p.Help,
		Example:               "  " + p.Name + " inspect order:42\n  " + p.Name + " inspect --id evt_1 --host shop.example.com order:42",
		DisableFlagsInUseLine: true,
		RunE: p.withCode(func(cmd *cobra.Command, args []string) (int, error) {
			key, code, err := "", exitError, error(nil)
			if cmd.Flags().Changed("hash") {
				key, code, err = flags.keyOf(cmd, hash)
			} else {
				key, err = delivery.key(cmd, args)
			}
			if err != nil {
				return code, err
			}
			var seen console.Inspection
			if err := flags.ask(cmd, http.MethodGet, "locks", slot.with(cmd, url.Values{"key": {key}}), &seen); err != nil {
				if exitOf(err) == exitNotThere {
					return exitNotThere, fmt.Errorf("%w; its key_hash in logs is %s", told(err), lockname.Hash(key))
				}
				return exitOf(err), told(err)
			}
			code = exitNotThere
			for _, l := range seen.Lockers {
				if l.Held || l.Remembered || len(l.Taken) > 0 {
					code = exitWell
				}
			}
			if flags.json {
				return code, printJSON(cmd.OutOrStdout(), seen)
			}
			for _, l := range seen.Lockers {
				printInspection(cmd.OutOrStdout(), key, l, time.Now())
			}
			return code, nil
		}),
	}
	flags.add(cmd, p)
	delivery.add(cmd)
	slot.add(cmd)
	cmd.Flags().StringVar(&hash, "hash", "", "The key_hash of a log, in place of the key")
	cmd.MarkFlagsMutuallyExclusive("hash", "id")
	named := cmd.Args
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if cmd.Flags().Changed("hash") {
			return cobra.NoArgs(cmd, args)
		}
		return named(cmd, args)
	}
	return cmd
}

// keyOf returns the key with this hash, of those that the process holds or waits for, or an exit code.
func (a *asking) keyOf(cmd *cobra.Command, hash string) (key string, code int, err error) {
	hash = strings.ToLower(hash)
	if len(hash) != len(lockname.Hash("")) || strings.Trim(hash, "0123456789abcdef") != "" {
		return "", exitError, fmt.Errorf("--hash %s: want a key_hash of a log, such as %s", hash, lockname.Hash("order:42"))
	}
	var found console.Locks
	if err := a.ask(cmd, http.MethodGet, "locks", url.Values{"hash": {hash}}, &found); err != nil {
		return "", exitOf(err), told(err)
	}
	if len(found.Locks) == 0 {
		return "", exitNotThere, errors.New("the process that was asked neither holds a key with this hash nor waits for one: ask the process whose log has the hash; the key may also be free by now: then inspect the keys that it may be, which shows their hashes")
	}
	if href, err := url.Parse(found.Locks[0].Href); err == nil { // which has keys that aren't UTF-8, too
		key = href.Query().Get("key")
	}
	if lockname.Hash(key) != hash {
		return "", exitError, errors.New("the process that was asked can't look for a hash: its version is older")
	}
	return key, exitWell, nil
}

func (p *Program) release() *cobra.Command {
	var flags asking
	var slot slotFlag
	var fence uint64
	cmd := &cobra.Command{
		Use:   "release --fence <n> [--slot <n>] " + p.Usage + " <key>",
		Short: "Ends a lock by force, whoever holds it",
		Long: `
Ends a lock by force, whoever holds it: the lock with this fencing token, and no other.
inspect shows the token, and the slot of a key that several may hold. The holder learns that its lock is lost, but what it has begun,
such as an upstream, may still be working: another may run next to it from now on.

The exit code is 3 if nothing was released, because nobody holds the key, or another
lock has it by now.
` + p.Help,
		Example:               "  " + p.Name + " release order:42 --fence 1763812345678901",
		DisableFlagsInUseLine: true,
		Args:                  cobra.ExactArgs(1),
		RunE: p.withCode(func(cmd *cobra.Command, args []string) (int, error) {
			if fence == 0 {
				return exitError, fmt.Errorf("--fence is needed: the fencing token of the lock that is to end; %s inspect shows it", p.Name)
			}
			var released console.Released
			query := slot.with(cmd, url.Values{"key": {args[0]}, "fence": {strconv.FormatUint(fence, 10)}})
			if err := flags.ask(cmd, http.MethodDelete, "locks", query, &released); err != nil {
				return exitOf(err), notReleased(err)
			}
			if flags.json {
				return exitWell, printJSON(cmd.OutOrStdout(), released)
			}
			fmt.Fprintf(cmd.OutOrStdout(), "released %s%s, which had the fencing token %d\n", slot.of(cmd), Printable(args[0]), fence)
			return exitWell, nil
		}),
	}
	flags.add(cmd, p)
	slot.add(cmd)
	cmd.Flags().Uint64Var(&fence, "fence", 0, "Fencing token of the lock that is to end (required)")
	return cmd
}

// told returns an error with all that a problem says.
func told(err error) error {
	var problem *console.Problem
	if !errors.As(err, &problem) {
		return err
	}
	text := problem.Title
	if problem.Detail != "" {
		text += ": " + problem.Detail
	}
	return errors.New(Printable(text))
}

// notReleased is told for a lock that could not be released.
func notReleased(err error) error {
	var problem *console.Problem
	switch {
	case !errors.As(err, &problem):
	case problem.Status == http.StatusConflict && problem.Fence == 0:
		return errors.New("nothing was released: the masters do not know the lock's fencing token at the moment; try again in a few seconds")
	case problem.Status == http.StatusConflict:
		return fmt.Errorf("nothing was released: %s, with the fencing token %d", lower(problem.Title), problem.Fence)
	case problem.Status == http.StatusNotFound:
		return fmt.Errorf("nothing was released: %s", lower(problem.Title))
	}
	return told(err)
}

// printInspection prints a key as the masters of a locker see it.
func printInspection(out io.Writer, key string, l console.InspectedLocker, now time.Time) {
	paragraph(out, "key     ", key)
	paragraph(out, "hash    ", lockname.Hash(key))
	if l.Slot > 0 {
		paragraph(out, "slot    ", strconv.Itoa(l.Slot))
	}
	if text := l.SlotsTaken(); text != "" {
		printSlots(out, text, l.Taken, now)
	} else if l.Held {
		paragraph(out, "holder  ", l.Holder)
		if l.Turn != nil {
			paragraph(out, "since   ", span(max(0, now.Sub(l.Turn.Since)))+" ago")
			if text := l.Turn.String(); text != "" {
				paragraph(out, "for     ", text)
			}
			if r := l.Turn.Request; r != nil && r.Delivery != "" && r.Delivery != key {
				paragraph(out, "besides ", r.Delivery+", for its delivery")
			}
		}
		paragraph(out, "lease   ", span(seconds(l.TTLSeconds)))
		fence := "not known to the masters at the moment"
		if l.Fence != 0 {
			fence = strconv.FormatUint(l.Fence, 10)
		}
		paragraph(out, "fence   ", fence)
		printBehind(out, "behind  ", l.Turn, false, now)
	} else {
		paragraph(out, "holder  ", "none that a majority of the masters knows")
	}
	heads := []string{"MASTER", "TOKEN", "HOLDER", "LEASE", "FENCE", "QUEUE"}
	if l.Result != nil {
		heads = append(heads, "REMEMBERS")
		printResult(out, l)
	}
	var rows [][]string
	var queue []console.InspectedWaiter
	for _, m := range l.Masters {
		row := []string{m.Name, orDash(m.Token), orDash(m.Holder), "-", "-", strconv.Itoa(len(m.Queue))}
		if m.Error != "" {
			row[1], row[5] = "?", "?"
		}
		if m.Token != "" {
			row[3] = span(seconds(m.TTLSeconds))
		}
		if m.Fence != 0 {
			row[4] = strconv.FormatUint(m.Fence, 10)
		}
		if len(m.Queue) > len(queue) {
			queue = m.Queue
		}
		if l.Result != nil {
			row = append(row, rememberedBy(m, l.Result.Fence))
		}
		rows = append(rows, row)
	}
	fmt.Fprintln(out)
	table(out, heads, rows, 0, 2)
	fmt.Fprintln(out)
	for _, m := range l.Masters {
		if m.Error != "" {
			paragraph(out, "", m.Name+": "+m.Error)
		}
	}
	for i, w := range queue {
		text := fmt.Sprintf("%d. %s", i+1, w.Process)
		if !w.Since.IsZero() {
			text += ", for " + span(max(0, now.Sub(w.Since)))
		}
		if turn := w.Turn.String(); turn != "" {
			text += ": " + turn
		}
		paragraph(out, "waits   ", text)
		printBehind(out, "  then  ", w.Turn, true, now)
	}
}

// printBehind prints the calls that wait behind one in its process, which waits itself or holds the key.
func printBehind(out io.Writer, head string, turn *inspect.Turn, waits bool, now time.Time) {
	if turn == nil {
		return
	}
	for _, c := range turn.Line {
		paragraph(out, head, fmt.Sprintf("%s, for %s", cmp.Or(c.String(), "a call"), span(max(0, now.Sub(c.Since)))))
	}
	if more := turn.More(waits); more > 0 {
		paragraph(out, head, fmt.Sprintf("%d more", more))
	}
}

// printResult prints what is remembered for a key.
func printResult(out io.Writer, l console.InspectedLocker) {
	text := fmt.Sprintf("%s for %s, of fence %d", amount(l.Result.Bytes), span(seconds(l.Result.KeepSeconds)), l.Result.Fence)
	if !l.Remembered {
		text += "; too few masters remember it, so the next one may run again"
	}
	paragraph(out, "result  ", text)
}

// rememberedBy is what the table shows of what a master remembers, when this is the fence of the last response.
func rememberedBy(m console.InspectedMaster, last uint64) string {
	switch {
	case m.Error != "":
		return "?"
	case m.Result == nil:
		return "-"
	case m.Result.Fence < last:
		return "an older one"
	}
	return amount(m.Result.Bytes)
}
