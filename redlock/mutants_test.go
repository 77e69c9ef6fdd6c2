package redlock

import (
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/internal/tests/redistest"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/memory"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
)

// mutant is a wrong version of the code, made where the simulation touches it: at its settings, at
// what a process sends and hears, and at what a server does. The zero value changes nothing.
type mutant struct {
	name    string
	breaks  string // the property, as a violation of it begins
	from    uint64 // a seed that finds it, where the first hundreds don't
	quiet   bool   // only in worlds where all depends on wake-ups
	shape   func(w *world)
	send    func(l *route, cmd *protocol.Command)                   // before it is sent
	answer  func(l *route, cmd *protocol.Command)                   // when it is answered
	greet   func(l *route, s *protocol.Server)                      // when a connection is made
	serve   func(m *memory.Master, cmd *protocol.Command) (ok bool) // in place of the server, if it says so
	ahead   func(cmd *protocol.Command) bool                        // the sender doesn't wait for its reply
	hear    func(l *route, w protocol.WakeUp) bool                  // whether a wake-up is sent
	fence   func(k *Lock) uint64                                    // in place of the lock's, between neighbors
	started func(p *process)                                        // when a process has its Locker
	unlock  func(k *Lock, result []byte, keep time.Duration) error  // in place of UnlockWith
	prompt  bool                                                    // what blocks a sender is said not to
	refuses bool                                                    // who doesn't answer seems to refuse connections
	apart   bool                                                    // only with masters of which majorities may not meet
}

// busy gives each process so many clients.
func (w *world) busy(clients int) {
	for _, p := range w.processes {
		p.clients = clients
	}
}

// mutants are what must not go unnoticed. Each is the code without one of its rules.
var mutants = slices.Concat(clockMutants, lockMutants, resultMutants, lineMutants, blockMutants, workMutants, beatMutants, slotMutants, turnMutants)

// TestMutants: the simulation finds each of them. A property that no mutant breaks is not tested.
func TestMutants(t *testing.T) {
	t.Parallel()
	if redistest.Few() {
		t.Skip("make models runs it: it takes minutes")
	}
	const enough = 4000 // seeds; most take fewer than 100
	for _, m := range mutants {
		t.Run(m.name, func(t *testing.T) {
			var found atomic.Uint64
			seeds(t, max(m.from, 1), enough, func(t *testing.T, seed uint64) bool {
				for _, broken := range simulate(t, seed, m).broken {
					if strings.HasPrefix(broken, m.breaks) {
						found.Store(seed)
					}
				}
				return found.Load() == 0
			})
			if found.Load() == 0 {
				t.Fatalf("survives %d seeds; should break: %s", enough, m.breaks)
			}
			t.Logf("found by seed %d", found.Load())
		})
	}
}
