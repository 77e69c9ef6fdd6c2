package traefik

import (
	"fmt"
	"log"
	"net"
	"sync"
	"time"
)

// options are the settings of a locker. All processes that share masters must have the same prefix and maxTTL.
type options struct {
	masters []*address
	prefix  string
	maxTTL  time.Duration
	guard   time.Duration
	maxSkew time.Duration
	timeout time.Duration
}

// covers returns the longest TTL of any process that the guard covers.
func (o *options) covers() time.Duration { return longer(o.maxTTL, o.guard-time.Second) }

// locker takes locks on a majority of its masters. One mutex guards all of it, and is never held during I/O.
type locker struct {
	*options
	quorum  int
	id      string // of this process: its tokens begin with it
	name    string // of this process in the masters' queues
	began   time.Time
	streams []*stream
	closing chan bool
	done    sync.WaitGroup

	mu      sync.Mutex
	closed  bool
	sets    *registry
	gates   map[string]*gate
	locks   map[int64]*lock
	lastID  int64
	nextDue time.Time // when keep must look at a lock; zero if there is none
	notes   []string  // for the log

	offset      int64 // of the masters' clocks; see mastersNow
	offsetAt    time.Time
	offsetKnown bool
}

func newLocker(o *options) *locker {
	l := &locker{
		options: o,
		quorum:  len(o.masters)/2 + 1,
		id:      randomText()[:8],
		began:   time.Now(),
		closing: make(chan bool),
		gates:   map[string]*gate{},
		locks:   map[int64]*lock{},
	}
	l.name = o.prefix + ":wake:" + l.newToken()
	for i, a := range o.masters {
		l.streams = append(l.streams, &stream{l: l, index: i, address: a, clock: &clock{l: l}, seat: &seat{}, connects: time.Now(), known: map[int]bool{}})
	}
	l.sets = newRegistry(l)
	l.sets.attend(l.began) // before any lock is taken
	l.done.Add(1 + len(l.streams))
	for _, s := range l.streams {
		s.start()
	}
	go guarded(l.run)
	return l
}

// fullKey returns the key on the masters, as package redlock does. A key that would begin with an empty hash tag gets
// one more brace.
func (l *locker) fullKey(key string) string {
	for i := 0; i < len(key); i++ {
		if key[i] == '}' {
			return l.prefix + ":{{" + key + "}"
		}
		if key[i] != '{' {
			break
		}
	}
	return l.prefix + ":{" + key + "}"
}

// flush sends what is queued to the masters that have no batch under way.
func flush(l *locker) {
	for _, s := range l.streams {
		conn, out := takeFrom(l, s)
		write(conn, out)
	}
}

func takeFrom(l *locker, s *stream) (net.Conn, []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return takeBatch(s)
}

// tick is how long the locker pauses, at least, before it looks again for what is due.
const tick = 20 * time.Millisecond

// run renews leases and repeats releases until the locker is closed.
func (l *locker) run() {
	defer l.done.Done()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-l.closing:
			return
		}
		timer.Reset(l.work())
	}
}

// work does what is due, and returns for how long nothing will be due.
func (l *locker) work() (pause time.Duration) {
	defer func() {
		if p := recover(); p != nil {
			l.panicked(p)
			pause = tick
		}
	}()
	lost, hung, notes, pause := l.due()
	for _, k := range lost {
		k.reportLoss()
	}
	for _, conn := range hung {
		_ = conn.Close()
	}
	flush(l)
	for _, note := range notes {
		log.Print("redlock: " + note)
	}
	return pause
}

func (l *locker) due() (lost []*lock, hung []net.Conn, notes []string, pause time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	pause = 5 * tick
	lost = l.keep(now)
	for _, s := range l.streams {
		if s.attend(now) {
			hung = append(hung, s.conn)
		}
		if len(s.owed) > 0 {
			pause = tick
		}
	}
	if len(l.locks) > 0 {
		pause = tick
	}
	l.sets.attend(now)
	notes = l.notes
	l.notes = nil
	return lost, hung, notes, pause
}

// reportLoss calls the holder's function, because the lock is lost.
func (k *lock) reportLoss() {
	l := k.a.l
	l.mu.Lock()
	end := k.end
	l.mu.Unlock()
	if end != nil {
		end(k.lost)
	}
}

// note keeps a line for the log, which must contain neither keys nor passwords. The caller holds mu.
func (l *locker) note(text string) {
	if len(l.notes) < 100 {
		l.notes = append(l.notes, text)
	}
}

func (l *locker) panicked(p interface{}) {
	log.Print("redlock: internal error: " + fmt.Sprint(p))
}

func (l *locker) runs() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return !l.closed
}

// downFor returns for how long a master isn't tried again.
func (l *locker) downFor(s *stream) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return time.Until(s.downUntil)
}

// idle reports whether no lock is held or wanted, and no release is owed.
func (l *locker) idle() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	for _, s := range l.streams {
		for _, c := range s.owed {
			if !needless(c, now) {
				return false
			}
		}
	}
	return len(l.gates) == 0
}

// close closes the connections, and waits for the goroutines. No lock may be wanted any more.
func (l *locker) close() {
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return
	}
	l.closed = true
	conns := []net.Conn{}
	for _, s := range l.streams {
		if s.conn != nil {
			conns = append(conns, s.conn)
		}
	}
	l.mu.Unlock()
	close(l.closing)
	for _, conn := range conns {
		_ = conn.Close()
	}
	l.done.Wait()
}
