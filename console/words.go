package console

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/caddy-redlock/caddy-redlock/redlock"
	"github.com/caddy-redlock/caddy-redlock/redlock/inspect"
)

type verdict struct {
	Level string // good, warn, bad, or none without a locker
	Mark  string // a shape, for people who don't see the color
	Color string // of the icon
	Title string
	Text  string

	Runbook string // the section of docs/operations.md that says what to do, or empty
}

// judge returns the worst verdict on the lockers.
func judge(status Status) verdict {
	worst := verdict{Level: "none", Mark: "–", Color: "8a94a0", Title: "No lock is configured", Text: "This process takes no locks."}
	for i, l := range status.Lockers {
		if v := l.judge(); i == 0 || v.Level == "bad" || v.Level == "warn" && worst.Level == "good" {
			worst = v
		}
	}
	return worst
}

func (l *Locker) judge() verdict {
	n := len(l.Masters)
	if l.Ready && l.Available == n && len(l.Disagreements) > 0 {
		return verdict{"warn", "!", "b26a00", "Locks are granted, but processes disagree", sentence(l.Disagreements[0].Text), "processes-that-disagree"}
	}
	switch spare := l.Available - l.Quorum; {
	case !l.Ready && l.Available >= l.Quorum:
		return verdict{"bad", "✕", "c4372c", "No locks can be taken", sentence(l.Error), "processes-that-disagree"}
	case !l.Ready:
		text := fmt.Sprintf("Of %d masters, %d can grant locks, and a lock needs %d.", n, l.Available, l.Quorum)
		if n == 1 {
			text = "The only master is not available."
		}
		return verdict{"bad", "✕", "c4372c", "No locks can be taken", text, "no-quorum"}
	case l.Available < n:
		title := fmt.Sprintf("Locks are granted, but %d of %d masters are ill", n-l.Available, n)
		if n-l.Available == 1 {
			title = fmt.Sprintf("Locks are granted, but 1 of %d masters is ill", n)
		}
		text := "If another one fails, no lock can be taken."
		if spare > 0 {
			text = fmt.Sprintf("A lock needs %d: %d more may fail.", l.Quorum, spare)
		}
		section := "a-slow-master"
		if slices.ContainsFunc(l.Masters, func(m Master) bool {
			return m.State != redlock.MasterAvailable && m.State != redlock.MasterSlow
		}) {
			section = "a-master-is-away"
		}
		return verdict{"warn", "!", "b26a00", title, text, section}
	case n == 1:
		return verdict{"good", "✓", "1d7f4f", "Locks are granted", "The only master is available. If it fails, no lock can be taken.", ""}
	default:
		return verdict{"good", "✓", "1d7f4f", "Locks are granted", fmt.Sprintf("All %d masters are available, and a lock needs %d.", n, l.Quorum), ""}
	}
}

func runbook(section string) string {
	return "https://github.com/caddy-redlock/caddy-redlock/blob/main/docs/operations.md#" + section
}

func level(state redlock.MasterState) string {
	switch state {
	case redlock.MasterAvailable:
		return "good"
	case redlock.MasterConnecting, redlock.MasterRestarted, redlock.MasterReplaced:
		return "warn" // this state ends by itself
	}
	return "bad"
}

func sentence(text string) string {
	text = strings.TrimPrefix(text, "redlock: ")
	first, size := utf8.DecodeRuneInString(text)
	return string(unicode.ToUpper(first)) + text[size:] + "."
}

func count(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return strconv.Itoa(n) + " " + many
}

// seconds writes a duration in at most two units.
func seconds(s float64) string {
	d := time.Duration(s * float64(time.Second))
	switch minutes := int(d.Minutes()); {
	case d < time.Millisecond:
		return strconv.FormatFloat(s*1000, 'f', 2, 64) + " ms"
	case d < 10*time.Millisecond:
		return strconv.FormatFloat(s*1000, 'f', 1, 64) + " ms"
	case d < time.Second:
		return fmt.Sprintf("%d ms", d.Milliseconds())
	case d < 100*time.Second:
		return strconv.FormatFloat(math.Floor(s*10)/10, 'f', 1, 64) + " s"
	case minutes < 60:
		return fmt.Sprintf("%d min %d s", minutes, int(d.Seconds())%60)
	case minutes < 48*60:
		return fmt.Sprintf("%d h %d min", minutes/60, minutes%60)
	default:
		return fmt.Sprintf("%d days", minutes/60/24)
	}
}

func size[N int | int64](bytes N) string {
	switch n := float64(bytes); {
	case n < 1000:
		return fmt.Sprintf("%d B", bytes)
	case n < 1e6:
		return strconv.FormatFloat(n/1e3, 'f', 1, 64) + " kB"
	case n < 1e9:
		return strconv.FormatFloat(n/1e6, 'f', 1, 64) + " MB"
	default:
		return strconv.FormatFloat(n/1e9, 'f', 1, 64) + " GB"
	}
}

func memory(m Master) string {
	switch {
	case m.UsedMemory == 0:
		return "–"
	case m.Maxmemory == 0:
		return size(m.UsedMemory)
	}
	return fmt.Sprintf("%s, %d %% of %s", size(m.UsedMemory), 100*m.UsedMemory/m.Maxmemory, size(m.Maxmemory))
}

// nearlyFull reports whether a server may soon have no memory for locks.
func nearlyFull(m Master) bool {
	return m.Maxmemory > 0 && m.UsedMemory > m.Maxmemory/5*4
}

func offset(s float64) string {
	if s < 0 {
		return "−" + seconds(-s)
	}
	return "+" + seconds(s)
}

// shown returns a key as text that looks like no other: one with characters that can't be seen is quoted as in Go.
func shown(key string) string {
	if !utf8.ValidString(key) || strings.ContainsFunc(key, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return strconv.Quote(key)
	}
	return key
}

// extremes returns the key that has been held for the longest time, and the key for which the most calls wait; nil if there is
// none.
func extremes(keys []inspect.KeyStatus) (oldest, longest *inspect.KeyStatus) {
	for i := range keys {
		key := &keys[i]
		if key.Held && (oldest == nil || key.Since.Before(oldest.Since)) {
			oldest = key
		}
		if key.Waiting > 0 && (longest == nil || key.Waiting > longest.Waiting) {
			longest = key
		}
	}
	return oldest, longest
}
