package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"
	"unicode/utf8"

	"golang.org/x/term"
)

// lineWidth is how wide a line of a text is.
const lineWidth = 80

// sized is an output that ends on a terminal of this width, or somewhere else if that is 0.
type sized struct {
	io.Writer
	width int
}

// widthOf returns the width of the terminal, or 0 if the output goes somewhere else: a program wants all of it.
func widthOf(out io.Writer) int {
	switch out := out.(type) {
	case sized:
		return out.width
	case *os.File:
		if width, _, err := term.GetSize(int(out.Fd())); err == nil {
			return width
		}
	}
	return 0
}

// table writes rows below their heads. If they are too wide for the terminal, the columns that are named are shortened, one after the
// other: first by what all their cells have in common, then in the middle of each cell.
func table(out io.Writer, heads []string, rows [][]string, shortened ...int) {
	const gap = 2
	widths := make([]int, len(heads))
	excess := func() int {
		total := gap*(len(heads)-1) - widthOf(out)
		for i := range heads {
			widths[i] = utf8.RuneCountInString(heads[i])
			for _, row := range rows {
				widths[i] = max(widths[i], utf8.RuneCountInString(row[i]))
			}
			total += widths[i]
		}
		return total
	}
	if widthOf(out) > 0 {
		for _, i := range shortened {
			if excess() > 0 {
				unshare(rows, i)
			}
		}
	}
	if total := excess(); widthOf(out) > 0 {
		for _, least := range []int{12, 6} {
			for _, i := range shortened {
				width := widths[i]
				widths[i] = min(width, max(least, width-max(0, total)))
				total -= width - widths[i]
			}
		}
	}
	w := tabwriter.NewWriter(out, 0, 0, gap, ' ', 0)
	for _, row := range append([][]string{heads}, rows...) {
		for i, cell := range row {
			if i > 0 {
				_, _ = io.WriteString(w, "\t")
			}
			_, _ = io.WriteString(w, shorten(cell, widths[i]))
		}
		_, _ = io.WriteString(w, "\n")
	}
	_ = w.Flush()
}

// unshare replaces by dots what all cells of a column begin and end with, as far as whole words of them go.
func unshare(rows [][]string, column int) {
	var cells []*string
	for _, row := range rows {
		if row[column] != "-" {
			cells = append(cells, &row[column])
		}
	}
	if len(cells) < 2 {
		return
	}
	head, tail := *cells[0], *cells[0]
	for _, cell := range cells[1:] {
		for !strings.HasPrefix(*cell, head) {
			head = head[:len(head)-1]
		}
		for !strings.HasSuffix(*cell, tail) {
			tail = tail[1:]
		}
	}
	if head == *cells[0] { // they are all the same, or one is the beginning of the others
		return
	}
	const ends = ":/.-_ @"
	head = head[:strings.LastIndexAny(head, ends)+1]
	if i := strings.IndexAny(tail, ends); i >= 0 && tail != *cells[0] {
		tail = tail[i:]
	} else {
		tail = ""
	}
	for _, cell := range cells {
		if len(head)+len(tail) > len(*cell) {
			return
		}
	}
	for _, cell := range cells {
		*cell = dots(head) + strings.TrimSuffix(strings.TrimPrefix(*cell, head), tail) + dots(tail)
	}
}

func dots(left string) string {
	if utf8.RuneCountInString(left) < 2 {
		return left
	}
	return "…"
}

// shorten leaves out the middle of a text that is longer than width.
func shorten(text string, width int) string {
	runes := []rune(text)
	if len(runes) <= width {
		return text
	}
	head := width / 2
	tail := width - head - 1
	return string(runes[:head]) + "…" + string(runes[len(runes)-tail:])
}

// Printable escapes what a terminal would not show, or obey: clients choose the keys.
func Printable(text string) string {
	for _, r := range text {
		if !unicode.IsPrint(r) || r == utf8.RuneError {
			quoted := strconv.Quote(text)
			return quoted[1 : len(quoted)-1]
		}
	}
	return text
}

// paragraph writes a text in lines of at most lineWidth, the first after a head, the others indented as far.
func paragraph(out io.Writer, head, text string) {
	indent := utf8.RuneCountInString(head)
	line, width := head, indent
	for _, word := range strings.Fields(Printable(text)) {
		n := utf8.RuneCountInString(word)
		if width > indent && width+1+n > lineWidth {
			fmt.Fprintln(out, line)
			line, width = strings.Repeat(" ", indent), indent
		}
		if width > indent {
			line += " "
			width++
		}
		line += word
		width += n
	}
	fmt.Fprintln(out, line)
}

// printJSON writes a value as JSON in several lines.
func printJSON(out io.Writer, value any) error {
	encoder := json.NewEncoder(out)
	encoder.SetIndent("", "  ")
	encoder.SetEscapeHTML(false)
	return encoder.Encode(value)
}

// span writes a duration as briefly as a person wants to read it.
func span(d time.Duration) string {
	switch abs := d.Abs(); {
	case abs < 10*time.Millisecond:
		return fmt.Sprintf("%.2fms", float64(d)/float64(time.Millisecond))
	case abs < time.Second:
		return fmt.Sprintf("%dms", d.Round(time.Millisecond).Milliseconds())
	case abs < time.Minute:
		return fmt.Sprintf("%.1fs", d.Seconds())
	case abs < time.Hour:
		return fmt.Sprintf("%dm%02ds", int(d.Minutes()), int(abs.Seconds())%60)
	case abs < 48*time.Hour:
		return fmt.Sprintf("%dh%02dm", int(d.Hours()), int(abs.Minutes())%60)
	}
	return fmt.Sprintf("%dd", int(d.Hours()/24))
}

// amount writes a number of bytes.
func amount[N int | int64](bytes N) string {
	n, unit := float64(bytes), 0
	for units := len("kMG"); n >= 1000 && unit < units; unit++ {
		n /= 1000
	}
	if unit == 0 {
		return fmt.Sprintf("%dB", bytes)
	}
	return fmt.Sprintf("%.1f%cB", n, "kMG"[unit-1])
}

// seconds makes a duration of what JSON has.
func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// offset is span with its sign.
func offset(d time.Duration) string {
	if d < 0 {
		return span(d)
	}
	return "+" + span(d)
}

// orDash returns a dash for an empty cell.
func orDash(text string) string {
	if text == "" {
		return "-"
	}
	return Printable(text)
}
