package redlock_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/internal/redistest"
	"github.com/caddy-redlock/caddy-redlock/redlock"
)

// TestProcessesAreKnown: each process sees all that share its masters, and each side of a disagreement names the other.
func TestProcessesAreKnown(t *testing.T) {
	t.Parallel()
	urls := redistest.URLs(redistest.Start(t, 5))
	ours := urls[:3]
	process := func(name string, urls []string, opts ...redlock.Option) *redlock.Locker {
		return newLocker(t, urls, append(opts, redlock.WithInstance(name))...)
	}
	began := time.Now()
	one, two := process("one", ours), process("two", ours)
	lockUnlock(t, one, "key")
	longer := process("longer", ours, redlock.WithMaxTTL(2*longTTL))
	other := process("other", []string{urls[2], urls[3], urls[4]})

	all := func(l *redlock.Locker) []redlock.Process {
		var known []redlock.Process
		if err := answered(t, func() (err error) { known, err = l.Processes(t.Context()); return err }); err != nil {
			t.Fatal(err)
		}
		return known
	}
	eventually(t, bound, "all know four processes", func() bool { return len(all(one)) == 4 && len(all(longer)) == 4 && len(all(other)) == 4 })
	differing := func(l *redlock.Locker) (names []string) {
		for _, d := range l.Status().Disagreements {
			what := "same"
			if d.Masters != "" {
				what = "masters"
			}
			if d.MaxTTL != 0 {
				what += " " + d.MaxTTL.String()
			}
			if d.Refused {
				what += " refused"
			}
			names = append(names, d.Process+" "+what)
		}
		return names
	}
	longest := (2 * longTTL).String()
	for l, want := range map[*redlock.Locker]string{
		one:    "longer same " + longest + ", other masters refused",
		two:    "longer same " + longest + ", other masters refused",
		longer: "other masters " + longTTL.String() + " refused",
	} {
		eventually(t, bound, l.Instance()+" names "+want, func() bool {
			return strings.Join(differing(l), ", ") == want || l == longer && hasBoth(differing(l), want)
		})
	}
	eventually(t, bound, "the one with other masters names one of us", func() bool {
		d := differing(other)
		return slices.ContainsFunc(d, func(text string) bool { return strings.HasSuffix(text, " masters") })
	})
	if _, err := other.TryLock(t.Context(), "key"); !errors.Is(err, redlock.ErrNoQuorum) || !strings.Contains(err.Error(), "the masters of ") {
		t.Errorf("the refused process gets %v", err)
	}

	for _, p := range all(other) {
		if !p.Own && (p.Disagreement == nil || p.Disagreement.Masters == "") {
			t.Errorf("the refused process doesn't see what differs at %s", p.Instance)
		}
	}
	for _, p := range all(one) {
		if p.Version == "" || p.Since.Before(began.Add(-time.Second)) || p.Seen.Before(began) || p.Own != (p.Instance == "one") || len(p.Masters) != 3 {
			t.Errorf("%+v", p)
		}
		switch p.Instance {
		case "one", "two":
			if p.Disagreement != nil {
				t.Errorf("%s: %+v", p.Instance, p.Disagreement)
			}
		case "longer":
			if d := p.Disagreement; d == nil || d.Masters != "" || d.MaxTTL != 2*longTTL {
				t.Errorf("%s: %+v", p.Instance, d)
			}
		case "other":
			if d := p.Disagreement; d == nil || !strings.Contains(d.Masters, urls[3]) || !d.Refused {
				t.Errorf("%s: %+v", p.Instance, d)
			}
		default:
			t.Errorf("unknown: %+v", p)
		}
	}
}

// hasBoth reports whether one of the texts is the wanted one, and the others are about the max TTL.
func hasBoth(texts []string, want string) bool {
	return slices.Contains(texts, want) && slices.ContainsFunc(texts, func(text string) bool {
		return strings.HasPrefix(text, "one same") || strings.HasPrefix(text, "two same")
	})
}

// TestProcessesWithoutQuorum: what is left of the masters tells what it knows.
func TestProcessesWithoutQuorum(t *testing.T) {
	t.Parallel()
	one, servers := onServers(t, 3, redlock.WithInstance("one"))
	lockUnlock(t, one, "key")
	eventually(t, bound, "all masters know the process", func() bool {
		for _, s := range servers {
			if s.Client().Exists(t.Context(), "redlock:processes:{processes}:ends").Val() == 0 {
				return false
			}
		}
		return true
	})
	servers[0].Kill()
	var known []redlock.Process
	ask := func() (err error) { known, err = one.Processes(t.Context()); return err }
	if err := answered(t, ask); err != nil || len(known) != 1 || !known[0].Own {
		t.Errorf("with two of three masters: %+v, %v", known, err)
	}
	servers[1].Kill()
	eventually(t, bound, "the one of three masters tells what it knows", func() bool { // in time, which a busy one may not
		if err := ask(); !errors.Is(err, redlock.ErrNoQuorum) {
			t.Fatalf("with one of three masters: %+v, %v", known, err)
		}
		return len(known) == 1
	})
}
