package cli

import (
	"fmt"
	"io"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/caddy-redlock/caddy-redlock/console"
)

// slotFlag names one of the slots of a key that several may hold.
type slotFlag struct{ n uint }

func (f *slotFlag) add(cmd *cobra.Command) {
	cmd.Flags().UintVar(&f.n, "slot", 0, "Slot of a key that several may hold")
}

// with adds the slot to the query, if one was named.
func (f *slotFlag) with(cmd *cobra.Command, query url.Values) url.Values {
	if cmd.Flags().Changed("slot") {
		query.Set("slot", strconv.FormatUint(uint64(f.n), 10))
	}
	return query
}

// of is what stands before the key.
func (f *slotFlag) of(cmd *cobra.Command) string {
	if cmd.Flags().Changed("slot") {
		return fmt.Sprintf("slot %d of ", f.n)
	}
	return ""
}

// printSlots prints the slots that are taken. What is printed of each master is about the first slot then.
func printSlots(out io.Writer, text string, taken []console.TakenSlot, now time.Time) {
	paragraph(out, "holders ", text)
	var rows [][]string
	for _, s := range taken {
		row := []string{strconv.Itoa(s.Slot), Printable(s.Holder), "-", span(seconds(s.TTLSeconds)), "-", orDash(s.Turn.String())}
		if s.Turn != nil {
			row[2] = span(max(0, now.Sub(s.Turn.Since)))
		}
		if s.Fence != 0 {
			row[4] = strconv.FormatUint(s.Fence, 10)
		}
		rows = append(rows, row)
	}
	if len(rows) > 0 {
		fmt.Fprintln(out)
		table(out, []string{"SLOT", "HOLDER", "SINCE", "LEASE", "FENCE", "FOR"}, rows, 1)
	}
	fmt.Fprintln(out, "\nSlot 0, and the line of all slots:")
}

// lower makes the title of a problem a part of a sentence.
func lower(title string) string {
	return strings.ToLower(title[:min(1, len(title))]) + title[min(1, len(title)):]
}
