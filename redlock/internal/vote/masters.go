// Package vote asks masters for a lock, and counts their votes: from a command for each of them to a verdict. It doesn't know the calls that want the
// lock, or their order.
package vote

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"hash/fnv"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock/internal/admission"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/link"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
)

// Stream carries commands to a master. It is a link.Stream to a server, or a cluster.Cluster, which has a link.Stream for each node.
type Stream interface {
	fmt.Stringer
	Divided() bool              // reports whether the master has several servers, so that one of them can fail alone
	At(key string) *link.Stream // returns the stream to the server that has the key
	Push(*link.Command)
	Enqueue(*link.Command)
	SendSoon()
	Listen(ctx context.Context, process string, ready func(), message func(protocol.WakeUp)) error
	Subscribed() bool
	Denied() bool
	Shows(now time.Time) (clock time.Duration, known bool)
	State() link.State
	Timeout() time.Duration
	Close(grace time.Duration) error
}

// Masters are the masters of one process, each with a vote.
type Masters struct {
	Streams  []Stream
	Quorum   int
	MaxSkew  time.Duration // how much the masters' clocks may differ; 0 if that isn't checked
	FastFrom time.Duration // the shortest lease of a Fast acquire; with a shorter lease, a master would forget the fence too soon
	Process  string        // the process's ID: its tokens begin with it
	Closing  <-chan struct{}

	room    chan struct{} // has a value for each result that is being stored or read
	refused atomic.Uint64 // how many results were not stored or read, because room was full
	alarms  sync.Pool     // of *alarm
}

// New returns n masters that have no Streams yet.
func New(n int, process string, maxSkew, fastFrom time.Duration, closing <-chan struct{}) *Masters {
	return &Masters{
		Quorum: n/2 + 1, MaxSkew: maxSkew, FastFrom: fastFrom, Process: process, Closing: closing,
		room: make(chan struct{}, ResultRoom),
	}
}

// Decisive returns the fewest replies that can settle a round: a quorum of grants wins it, and as soon as
// n-quorum+1 masters have failed or refused, no quorum is left.
func (m *Masters) Decisive() int { return min(m.Quorum, len(m.Streams)-m.Quorum+1) }

// Random returns a token, or the random part of a name. It begins with the ID of this process, so that others can find out the process of a token. 90
// random bits follow.
func (m *Masters) Random() string {
	const alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567" // the alphabet of rand.Text
	var text [protocol.RandomLen]byte
	_, _ = rand.Read(text[copy(text[:], m.Process):]) // rand.Read never fails
	for i := protocol.IDLen; i < len(text); i++ {
		text[i] = alphabet[text[i]%byte(len(alphabet))]
	}
	return string(text[:])
}

func (m *Masters) SendSoon() {
	for _, s := range m.Streams {
		s.SendSoon()
	}
}

// CanAsk reports whether a quorum of masters takes commands for a key now, as far as is known.
func (m *Masters) CanAsk(key string) bool {
	usable := 0
	for _, s := range m.Streams {
		if s.At(key).Usable() {
			usable++
		}
	}
	return usable >= m.Quorum
}

// Deny reports whether so many masters deny the subscription to wake-ups that no quorum can wake this process.
func (m *Masters) Deny() bool {
	denied := 0
	for _, s := range m.Streams {
		if s.Denied() {
			denied++
		}
	}
	return denied > len(m.Streams)-m.Quorum
}

// Patience returns how long the masters may take to answer a command for a key now.
func (m *Masters) Patience(key string) (longest time.Duration) {
	for _, s := range m.Streams {
		longest = max(longest, s.At(key).Patience())
	}
	return longest
}

// Name returns the name of a master or, of a Redis Cluster, of the node that has the key.
func (m *Masters) Name(master int, key string) string { return m.Streams[master].At(key).String() }

// Hung returns the error of a master that hasn't answered a command for a key within the timeout.
func (m *Masters) Hung(master int, key string, timeout time.Duration) error {
	return fmt.Errorf("%w within %v%s", link.ErrHung, timeout.Round(time.Millisecond), m.Streams[master].At(key).Advice())
}

// Time returns the time on the masters' clocks, in microseconds. Fences and tickets are made from this time, so that processes whose own clocks
// differ agree on them. It advances with our monotonic clock, so a change of our wall clock doesn't matter. known is false if fewer masters than a
// quorum have reported their time. Then the time may be no better than our wall clock.
func (m *Masters) Time() (now int64, known bool) {
	var room [8]time.Duration // room for the clocks of most Lockers; saves an allocation
	ours, clocks := time.Now(), room[:0]
	for _, s := range m.Streams {
		if clock, known := s.Shows(ours); known {
			clocks = append(clocks, clock)
		}
	}
	if len(clocks) == 0 {
		return ours.UnixMicro(), false
	}
	slices.Sort(clocks)
	return clocks[len(clocks)/2].Microseconds(), len(clocks) >= m.Quorum
}

// leader returns the index of the master that offers the slots of a key. It is the first master that answers, in an order that depends on the key and
// is the same for all processes (rendezvous hashing, D. Thaler and C. Ravishankar, 1998). It is -1 if no master answers. If processes see different
// leaders, two calls may be offered the same slot, and the votes decide.
func (m *Masters) leader(key string) int {
	leader, most := -1, uint64(0)
	for i, s := range m.Streams {
		if name, can := s.At(key).Leads(); can {
			rank := fnv.New64a()
			_, _ = rank.Write([]byte(name))
			_, _ = rank.Write([]byte(key))
			if sum := rank.Sum64(); leader < 0 || sum > most {
				leader, most = i, sum
			}
		}
	}
	return leader
}

// Absent returns the time since which too few masters have had a vote for a key, and the masters without a vote. It asks no master. The time is zero
// if enough masters have a vote.
func (m *Masters) Absent(key string) (since time.Time, failed []Failure) {
	var away []time.Time
	now := time.Now()
	for i, s := range m.Streams {
		if at, why := s.At(key).Away(now); !at.IsZero() {
			away = append(away, at)
			failed = append(failed, Failure{m.Name(i, key), why})
		}
	}
	spare := len(m.Streams) - m.Quorum
	if len(away) <= spare {
		return time.Time{}, nil
	}
	slices.SortFunc(away, time.Time.Compare)
	return away[spare], failed
}

// GuardsOver returns how long it takes until enough masters for a quorum have passed their restart guards. It is 0 if the end of the guards alone
// doesn't make a quorum.
func (m *Masters) GuardsOver(failed []Failure) time.Duration {
	var guarded []time.Duration
	for _, f := range failed {
		var guard *admission.GuardError
		if errors.As(f.Err, &guard) {
			guarded = append(guarded, max(0, time.Until(guard.Until)))
		}
	}
	slices.Sort(guarded)
	if missing := m.Quorum - (len(m.Streams) - len(failed)); 0 < missing && missing <= len(guarded) {
		return guarded[missing-1]
	}
	return 0
}

// Past reports whether t has passed on the monotonic clock or on the wall clock. The monotonic clock stands still while the host is suspended, but
// leases on the masters go on expiring.
func Past(t time.Time) bool {
	now := time.Now()
	return !now.Before(t) || !now.Round(0).Before(t.Round(0))
}
