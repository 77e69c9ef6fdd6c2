package redlock_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/internal/base/inside"
	"github.com/caddy-redlock/caddy-redlock/redlock"
	"github.com/caddy-redlock/caddy-redlock/redlock/inspect"
	"github.com/caddy-redlock/caddy-redlock/redlock/simnet"
)

// TestProcessesAreKnown: each process sees all that share its masters, and each side of a disagreement names the other.
func TestProcessesAreKnown(t *testing.T) {
	simnet.Run(t, 5, func(t *testing.T, net *simnet.Net) {
		process := func(name string, masters []redlock.Master, opts ...redlock.Option) *redlock.Locker {
			return simLocker(t, masters, append(opts, redlock.WithInstance(name))...)
		}
		began := time.Now()
		one, two := process("one", net.Pick(0, 1, 2)), process("two", net.Pick(0, 1, 2))
		lockUnlock(t, one, "key")
		longer := process("longer", net.Pick(0, 1, 2), redlock.WithMaxTTL(2*simTTL))
		other := process("other", net.Pick(2, 3, 4))

		all := func(l *redlock.Locker) []inspect.Process {
			known, err := inspect.Processes(t.Context(), l)
			if err != nil {
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
		longest := (2 * simTTL).String()
		for l, want := range map[*redlock.Locker]string{
			one:    "longer same " + longest + ", other masters refused",
			two:    "longer same " + longest + ", other masters refused",
			longer: "other masters " + simTTL.String() + " refused",
		} {
			eventually(t, bound, inside.Of(l).Instance+" names "+want, func() bool {
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
				if d := p.Disagreement; d == nil || d.Masters != "" || d.MaxTTL != 2*simTTL {
					t.Errorf("%s: %+v", p.Instance, d)
				}
			case "other":
				if d := p.Disagreement; d == nil || !strings.Contains(d.Masters, "sim://3") || !d.Refused {
					t.Errorf("%s: %+v", p.Instance, d)
				}
			default:
				t.Errorf("unknown: %+v", p)
			}
		}
	})
}

// hasBoth reports whether one of the texts is the wanted one, and the others are about the max TTL.
func hasBoth(texts []string, want string) bool {
	return slices.Contains(texts, want) && slices.ContainsFunc(texts, func(text string) bool {
		return strings.HasPrefix(text, "one same") || strings.HasPrefix(text, "two same")
	})
}

// TestProcessesWithoutQuorum: what is left of the masters tells what it knows.
func TestProcessesWithoutQuorum(t *testing.T) {
	simnet.Run(t, 3, func(t *testing.T, net *simnet.Net) {
		one := simLocker(t, net.Masters(), redlock.WithInstance("one"))
		lockUnlock(t, one, "key")
		net.Servers[0].Kill()
		if known, err := inspect.Processes(t.Context(), one); err != nil || len(known) != 1 || !known[0].Own {
			t.Errorf("with two of three masters: %+v, %v", known, err)
		}
		net.Servers[1].Kill()
		if known, err := inspect.Processes(t.Context(), one); !errors.Is(err, redlock.ErrNoQuorum) || len(known) != 1 {
			t.Errorf("with one of three masters: %+v, %v", known, err)
		}
	})
}
