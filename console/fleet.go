package console

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/caddy-redlock/caddy-redlock/internal/base/inside"
	"github.com/caddy-redlock/caddy-redlock/redlock"
	"github.com/caddy-redlock/caddy-redlock/redlock/inspect"
)

func (h *handler) processes(w http.ResponseWriter, r *http.Request) *Problem {
	answer(w, "application/json", http.StatusOK, processesOf(r.Context(), h.lockers()))
	return nil
}

// silence is for how long a process that lives may not be seen: it sends a beat every 2 s, and some beats may be lost.
const silence = 7 * time.Second

// processesOf asks the masters of each keyspace once, by the first of its lockers: that is the newest one, and the others will be
// closed soon.
func processesOf(ctx context.Context, lockers []*redlock.Locker) Processes {
	all, asked := Processes{Processes: []Process{}}, make(map[string]bool)
	for _, l := range lockers {
		keyspace := inside.Of(l).Keyspace
		if asked[keyspace] {
			continue
		}
		asked[keyspace] = true
		known, err := inspect.Processes(ctx, l)
		all.Error = cmp.Or(all.Error, text(err))
		for _, p := range known {
			p.Since, p.Seen = utc(p.Since), utc(p.Seen)
			shown := Process{Process: p, MaxTTLSeconds: p.MaxTTL.Seconds(), Silent: !p.Ended && !p.Seen.IsZero() && time.Since(p.Seen) > silence}
			if p.Disagreement != nil {
				d := disagreement(*p.Disagreement)
				shown.Disagreement = &d
			}
			all.Processes = append(all.Processes, shown)
		}
	}
	slices.SortStableFunc(all.Processes, func(a, b Process) int { return strings.Compare(a.Instance, b.Instance) })
	return all
}

func disagreement(d redlock.Disagreement) Disagreement {
	var what []string
	if d.Masters != "" {
		what = append(what, "other masters ("+d.Masters+")")
	}
	if d.MaxTTL != 0 {
		what = append(what, fmt.Sprintf("another max_ttl (%v)", d.MaxTTL.Round(time.Millisecond)))
	}
	if d.Concurrency != 0 {
		what = append(what, fmt.Sprintf("another concurrency for a key (%d)", d.Concurrency))
	}
	text := cmp.Or(d.Process, "another process") + " has " + strings.Join(what, " and ")
	if d.Refused {
		text += ", and gets no locks"
	}
	return Disagreement{d, d.MaxTTL.Seconds(), text}
}
