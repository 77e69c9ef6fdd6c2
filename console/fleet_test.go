package console_test

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/console"
	"github.com/caddy-redlock/caddy-redlock/internal/base/inside"
	"github.com/caddy-redlock/caddy-redlock/internal/tests/redistest"
	"github.com/caddy-redlock/caddy-redlock/redlock"
	"github.com/caddy-redlock/caddy-redlock/redlock/inspect"
	"github.com/caddy-redlock/caddy-redlock/redlock/simnet"
)

// TestProcesses: two processes with another max TTL are named on both consoles, in JSON and on the page.
func TestProcesses(t *testing.T) {
	t.Parallel()
	servers := redistest.Start(t, 1)
	one := newLocker(t, servers)
	base := mount(t, one)
	if known := ask[console.Processes](t, http.MethodGet, base+"processes", http.StatusOK); known.Error != "" {
		t.Error(known.Error)
	}
	other := newLocker(t, servers, redlock.WithInstance("web2/<b>"), redlock.WithMaxTTL(2*long))
	for _, l := range []*redlock.Locker{one, other} {
		base, their := mount(t, l), map[*redlock.Locker]string{one: "web2/<b>", other: "web1/42"}[l]
		eventually(t, inside.Of(l).Instance+" names the other", func() bool {
			d := ask[console.Status](t, http.MethodGet, base+"masters", http.StatusOK).Lockers[0].Disagreements
			return len(d) == 1 && d[0].Process == their && d[0].MaxTTLSeconds > 0 && d[0].Masters == "" && strings.HasPrefix(d[0].Text, their+" has another max_ttl (")
		})
		known := ask[console.Processes](t, http.MethodGet, base+"processes", http.StatusOK).Processes
		if len(known) != 2 {
			t.Fatalf("%+v", known)
		}
		for _, p := range known {
			if own := p.Instance == inside.Of(l).Instance; p.Own != own || (p.Disagreement == nil) != own || p.Version == "" || p.Since.IsZero() || p.Seen.IsZero() || len(p.Masters) != 1 {
				t.Errorf("%s: %+v", inside.Of(l).Instance, p)
			}
		}
		page := text(t, base)
		if !strings.Contains(page, "Locks are granted, but processes disagree") || !strings.Contains(page, "has another max_ttl") || strings.Contains(page, "<b>") || !strings.Contains(page, "web1/42") {
			t.Errorf("the page:\n%s", page)
		}
	}
	servers[0].Kill()
	eventually(t, "no master answers", func() bool {
		return ask[console.Processes](t, http.MethodGet, base+"processes", http.StatusOK).Error != ""
	})
	if page := text(t, base); !strings.Contains(page, "Some may be missing") {
		t.Errorf("the page without masters:\n%s", page)
	}
}

// TestProcessThatIsGone: one that is cut off is shown as silent, and one that has ended in order as ended, for as long as its locks may last.
func TestProcessThatIsGone(t *testing.T) {
	for want, gone := range map[string]func(t *testing.T, l *redlock.Locker, network *simnet.Address){
		"silent": func(_ *testing.T, _ *redlock.Locker, network *simnet.Address) {
			network.Set(simnet.Weather{Away: true})
			network.Cut()
		},
		"ended": func(t *testing.T, l *redlock.Locker, _ *simnet.Address) {
			if err := l.Close(); err != nil {
				t.Error(err)
			}
		},
	} {
		t.Run(want, func(t *testing.T) {
			simnet.Run(t, 1, func(t *testing.T, net *simnet.Net) {
				base := mountInside(t, net.Locker(t, redlock.WithInstance("web1/42")))
				network := simnet.NewAddress("sim://0", net.Servers[0])
				other, err := redlock.New(net.Masters(network), redlock.WithInstance("web2"))
				if err != nil {
					t.Fatal(err)
				}
				defer func() { _ = other.Close() }()
				find := func() (found console.Process) {
					for _, p := range ask[console.Processes](t, http.MethodGet, base+"processes", http.StatusOK).Processes {
						if p.Instance == "web2" {
							found = p
						}
					}
					return found
				}
				eventually(t, "web2 is seen", func() bool { return find().Instance != "" })
				for range 60 {
					time.Sleep(time.Second)
					if p := find(); p.Instance == "" || p.Silent || p.Ended {
						t.Fatalf("%+v, though it lives", p)
					}
				}
				gone(t, other, network)
				listed, page := time.Now(), ""
				for p := find(); p.Instance != ""; p = find() {
					if p.Ended != (want == "ended") || p.Silent && p.Ended || time.Since(listed) > time.Minute {
						t.Fatalf("%v after it has gone: %+v", time.Since(listed), p)
					}
					page = text(t, base)
					time.Sleep(time.Second)
				}
				if took := time.Since(listed); took < redlock.DefaultMaxTTL || !strings.Contains(page, ">"+want+"</span>") {
					t.Errorf("listed for %v, at last as\n%s", took, page)
				}
			})
		})
	}
}

// TestTurns: the request for which a key is held is shown, as text.
func TestTurns(t *testing.T) {
	t.Parallel()
	l := newLocker(t, redistest.Start(t, 1))
	base := mount(t, l)
	request := inspect.Request{Method: "POST", Path: "/<i>pay", ID: "r-1", TraceID: "t-1"}
	lock := mustLock(t, l, "order:42", redlock.WithLabel("pay"), withRequest(&inspect.Request{Method: request.Method, Path: request.Path, ID: request.ID, TraceID: request.TraceID}))
	if all := ask[console.Locks](t, http.MethodGet, base+"locks", http.StatusOK).Locks; len(all) != 1 || all[0].Request == nil || *all[0].Request != request {
		t.Errorf("%+v", all)
	}
	seen := ask[console.Inspection](t, http.MethodGet, base+"locks/order:42", http.StatusOK).Lockers[0]
	if turn := seen.Turn; turn == nil || turn.Label != "pay" || turn.Since.IsZero() || turn.Request == nil || *turn.Request != request {
		t.Errorf("%+v", turn)
	}
	for _, path := range []string{"", "?key=order:42"} {
		if page := text(t, base+path); !strings.Contains(page, "POST /&lt;i&gt;pay, request r-1, trace t-1") || strings.Contains(page, "<i>") {
			t.Errorf("the page %s:\n%s", path, page)
		}
	}
	if err := lock.Unlock(); err != nil {
		t.Error(err)
	}
}

// TestDeliveryIsOneRow: the key that a request locks for its delivery is shown with its other key, unless somebody waits for it; and each
// call that waits is shown.
func TestDeliveryIsOneRow(t *testing.T) {
	t.Parallel()
	l := newLocker(t, redistest.Start(t, 1))
	base := mount(t, l)
	const key, delivery = "order:42", "dedupe:133e40bd3eed3d2d858c826b67bc52408b92951c3bdf8b02397a678e4c733de0"
	request := withRequest(&inspect.Request{Method: "POST", Client: "alice", Delivery: delivery})
	mustLock(t, l, delivery, request)
	list := func(query string) console.Locks {
		return ask[console.Locks](t, http.MethodGet, base+"locks"+query, http.StatusOK)
	}
	if all := list(""); len(all.Locks) != 1 || all.Locks[0].Key != delivery {
		t.Errorf("a delivery without another key: %+v", all)
	}
	mustLock(t, l, key, request)
	for _, sort := range []string{"key", "waiting"} {
		if all := list("?sort=" + sort); len(all.Locks) != 1 || all.Keys != 1 || all.Held != 1 || all.Locks[0].Key != key || all.Locks[0].Request.Delivery != delivery || all.Locks[0].Request.Client != "alice" {
			t.Errorf("by %s: %+v", sort, all)
		}
	}
	if all := list("?prefix=dedupe:"); len(all.Locks) != 1 || all.Locks[0].Key != delivery {
		t.Errorf("by its own name: %+v", all)
	}
	for _, path := range []string{"", "?key=" + key} {
		if page := text(t, base+path); !strings.Contains(page, `POST, client alice`) || !strings.Contains(page, `<a class="key" href="?key=`+strings.Replace(delivery, ":", "%3a", 1)+`">dedupe:133e40bd3eed3…</a>`) {
			t.Errorf("the page %s:\n%s", path, page)
		}
	}
	wait := func(key, client string) {
		t.Helper()
		ctx, leave := context.WithCancel(t.Context())
		waits := make(chan struct{})
		go func() {
			defer close(waits)
			_, _ = l.Lock(ctx, key, redlock.WithLabel("pay"), withRequest(&inspect.Request{Client: client, Delivery: delivery}))
		}()
		t.Cleanup(func() { leave(); <-waits })
	}
	wait(key, "<b>ob")
	eventually(t, "one waits", func() bool { return l.Status().Waiting == 1 })
	lock := list("").Locks[0]
	turn := ask[console.Inspection](t, http.MethodGet, base+"locks/"+key, http.StatusOK).Lockers[0].Turn
	for where, line := range map[string][]inspect.Call{"in the list": lock.Line, "inspected": turn.Line} {
		if len(line) != 1 || line[0].Label != "pay" || line[0].Since.IsZero() || line[0].Request.Client != "<b>ob" {
			t.Errorf("%s: %+v", where, line)
		}
	}
	if page := text(t, base+"?key="+key); !strings.Contains(page, "client &lt;b&gt;ob, label pay</li>") {
		t.Errorf("the page:\n%s", page)
	}
	wait(delivery, "")
	eventually(t, "a repeat waits, and is shown", func() bool { return len(list("").Locks) == 2 })
}
