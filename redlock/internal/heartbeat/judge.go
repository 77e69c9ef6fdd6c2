// Package heartbeat decides whether a process may lock beside processes that have other masters. Every two seconds the process tells each of its
// masters which servers it reaches, and whether it locks. The reply has the facts that other processes have told. A Judge gets the masters' replies
// and the time. It has no clock, sends nothing, and starts no goroutine. docs/DESIGN.md has the rules ("The heartbeat").
package heartbeat

import (
	"cmp"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
)

const (
	// Every is the time between two beats. It is shorter than the time for which masters remember a fence. So when a master's clock is set back, the
	// processes know a time that it showed at most one beat earlier.
	Every = 2 * time.Second
	// Settled is how long a process may take to notice that a server has restarted, and to tell the masters.
	Settled = 2 * Every
	// Grace is how long a process that is about to lock waits for masters that don't answer.
	Grace = Every / 4
)

// Judge has the masters' replies to one process, and decides whether the process may lock. It isn't safe for concurrent use.
type Judge struct {
	id      string
	own     About
	masters []master
	number  int64
	entered int64               // the number of the last beat before the present state; a master that answers a later beat knows the state
	since   int64               // the time since which the process locks, on the masters' clocks in microseconds; or begins, or waits
	began   time.Time           // when the process began to be about to lock
	next    time.Time           // the process doesn't try to begin again before this time
	known   map[string]*Process // other processes that some master still remembers, by ID
	refusal error               // the reason why no lock may be taken now, or nil
	pause   func() time.Duration

	logged   map[string]bool // the subjects that were logged already
	changing time.Time       // when a process with other masters was last known to lock; zero if none was, or once the end of the change was logged
	notes    []Note
	again    bool // the masters must soon get a beat
}

type master struct {
	run      string    // the run ID of the last server; empty if no server was reached, or if it reports none
	started  time.Time // when that server started, or up to a second later; zero if the server doesn't report its uptime
	up       bool      // the master has answered the last beat, or was reached after it
	gone     bool      // nothing listens at the master's address
	answered time.Time // when the last answered beat with the present state was sent; zero if there is none

	time, born int64     // the master's clock in its last reply, and the beginning of the master's memory
	bornRun    string    // the run ID of the server that sent that reply
	sent       time.Time // when the beat of that reply was sent
}

type Note struct {
	Level slog.Level
	Text  string
	Args  []any
}

func New(id string, own About, masters []string) *Judge {
	j := &Judge{
		id: id, own: own, since: waits, masters: make([]master, len(masters)),
		known: make(map[string]*Process), logged: make(map[string]bool),
		pause: func() time.Duration { return Every + rand.N(Every) },
	}
	j.own.Wire = wire
	for _, name := range masters {
		j.own.Masters = append(j.own.Masters, Server{Name: name})
	}
	return j
}

// Begins reports whether the process is about to lock. Then Look must soon be called again.
func (j *Judge) Begins() bool { return j.since == begins }

// Refusal returns the reason why no lock may be taken now, or nil. It is also nil before the masters have replied.
func (j *Judge) Refusal() error { return j.refusal }

// Notes returns the log entries since the last call.
func (j *Judge) Notes() []Note {
	notes := j.notes
	j.notes = nil
	return notes
}

// Again reports whether the masters must soon get a beat, because of a change since the last call.
func (j *Judge) Again() bool {
	again := j.again
	j.again = false
	return again
}

// Until returns the time until which the process may lock without a further beat, because a quorum of the masters remembers until then that the
// process locks. The time is zero if the process may not lock.
func (j *Judge) Until() time.Time {
	if j.since <= begins {
		return time.Time{}
	}
	return j.remembered()
}

// remembered returns the time until which a quorum certainly remembers that the process locks, or is about to.
func (j *Judge) remembered() time.Time {
	answered := make([]time.Time, len(j.masters))
	for i := range j.masters {
		answered[i] = j.masters[i].answered
	}
	slices.SortFunc(answered, time.Time.Compare)
	at := answered[len(answered)-j.own.quorum()]
	if at.IsZero() {
		return at
	}
	life := j.own.life()
	return at.Add(life - life/100 - 2*time.Millisecond) // clocks may run apart
}

// before reports whether now is before t by both the monotonic and the wall clock. The monotonic clock stops while the host is suspended.
func before(now, t time.Time) bool { return now.Before(t) && now.Round(0).Before(t.Round(0)) }

func (j *Judge) Look(now time.Time) {
	for id, p := range j.known {
		if p.Since > begins && p.Told.After(p.apart) && !j.compatible(p) {
			p.apart = p.Told
		}
		switch same := j.same(p); {
		case min(now.Sub(p.Told), now.Sub(p.apart)) > p.life():
			delete(j.known, id)
		case same:
			p.unlike = time.Time{}
		case p.unlike.IsZero():
			p.unlike = now
		}
	}
	rival, elder := j.rivals(now)
	switch {
	case elder != nil:
		j.stop(now)
	case j.since > begins && !before(now, j.remembered()): // a process that was suspended, or cut off from a quorum, begins again
		j.become(waits)
	case j.since == begins:
		j.decide(now, rival)
	}
	if j.since == waits {
		if j.refusal = nil; rival != nil {
			j.refusal = j.conflict(rival)
		} else if j.up() >= j.own.quorum() && !before(now, j.next) {
			j.begin(now)
		}
	}
	j.tellOfOthers(now)
}

// rivals returns a rival and an elder, or nil for each. A rival is an incompatible process that locks or is about to. An elder is a rival that has
// locked for longer than this process, which then must stop. A locking process may have lost, only for a moment, the masters that make it
// incompatible. So it stays a rival for as long as masters remember a process.
func (j *Judge) rivals(now time.Time) (rival, elder *Process) {
	for _, p := range j.known {
		compatible := j.compatible(p)
		if p.Since == waits || compatible && (p.Since == begins || now.Sub(p.apart) > p.life()) {
			continue
		}
		if rival == nil || p.before(rival) {
			rival = p
		}
		if !compatible && j.since > begins && p.Since > begins && p.differs() && cmp.Or(cmp.Compare(p.Since, j.since), strings.Compare(p.ID, j.id)) < 0 {
			elder = p
		}
	}
	return rival, elder
}

// before decides which of several processes is named in errors and the log.
func (p *Process) before(other *Process) bool {
	return cmp.Or(cmp.Compare(p.Since, other.Since), strings.Compare(p.ID, other.ID)) < 0
}

func (j *Judge) up() (n int) {
	for i := range j.masters {
		if j.masters[i].up {
			n++
		}
	}
	return n
}

func (j *Judge) begin(now time.Time) {
	j.began = now
	j.become(begins)
}

// stop makes the process stop locking, or stop trying to, because of another process. The process tries again after a random pause. Without it, two
// processes that begin at the same time could block each other forever.
func (j *Judge) stop(now time.Time) {
	j.next = now.Add(j.pause())
	j.become(waits)
}

// become changes the state of the process. No master knows the new state yet.
func (j *Judge) become(since int64) {
	j.since, j.again, j.entered = since, true, j.number
	for i := range j.masters {
		j.masters[i].answered, j.masters[i].gone = time.Time{}, false
	}
}

func (j *Judge) reach(now time.Time, i int) {
	m, own := &j.masters[i], &j.own.Masters[i]
	run := cmp.Or(m.run, unknown)
	if m.up = true; own.Run == run {
		return
	}
	own.Run, j.again = run, true
	if j.since == begins { // the masters don't know yet that this run can vote for the process
		j.begin(now)
	}
}

// lose notes that a master isn't reached, so that it can't vote.
func (j *Judge) lose(i int) {
	j.masters[i].up, j.own.Masters[i].Run = false, ""
}

// decide makes a process that is about to lock start to lock, unless a rival prevents that.
func (j *Judge) decide(now time.Time, rival *Process) {
	complete, answered := true, 0
	var times []int64
	for i := range j.masters {
		m := &j.masters[i]
		complete = complete && (!m.answered.IsZero() || m.gone || now.Sub(j.began) >= Grace)
		if m.answered.IsZero() {
			continue
		}
		if answered++; m.time > 0 {
			times = append(times, m.time)
		}
	}
	switch {
	case rival != nil:
		j.stop(now)
	case !before(now, j.began.Add(Every)): // the first replies are too old
		j.begin(now)
	case !complete:
	case answered < j.own.quorum(): // the process withdraws, so that it doesn't block others, and tries again when more masters are reached
		for i := range j.masters {
			if j.masters[i].answered.IsZero() {
				j.lose(i)
			}
		}
		j.become(waits)
	default: // the process locks from now on, by the median of the masters' clocks
		if len(times) == 0 { // no master has reported its time
			times = append(times, now.UnixMicro())
		}
		slices.Sort(times)
		j.since, j.refusal, j.again = max(times[len(times)/2], begins+1), nil, true
	}
}

func (j *Judge) Beat() *protocol.Beat {
	j.number++
	var asks []string
	for id, p := range j.known {
		if !j.alike(p) && len(asks) < protocol.MaxOthers {
			asks = append(asks, id)
		}
	}
	return &protocol.Beat{Asks: asks, ID: j.id, Number: j.number, Life: j.own.life(), Kind: j.kind(), Since: j.since, About: j.own.text()}
}

// Farewell returns the last beat, which differs from the others only in what people see: for other processes, this one counts for as long as after
// any other beat.
func (j *Judge) Farewell() *protocol.Beat {
	j.own.Ended = true
	return j.Beat()
}

// kind returns a word that is the same for processes with the same servers and settings. Of each kind, a process needs to know only the eldest
// process.
func (j *Judge) kind() string {
	runs := j.own.runs()
	slices.Sort(runs)
	return fmt.Sprintf("%d/%d/%d/%d/%s", j.own.Wire, j.own.MaxTTL, j.own.Covers, len(j.masters), strings.Join(runs, ","))
}

// Reached notes the server that was reached at a master's address, before that server votes. The server may have had a different address before.
// lostUntil is the time until which the server is excluded because it has lost its data. That loss must not count again.
func (j *Judge) Reached(now time.Time, i int, server protocol.Server, lostUntil time.Time) {
	m, run := &j.masters[i], server.RunID
	if m.sent.Before(lostUntil) {
		m.bornRun = ""
	}
	for k := range j.masters {
		if other := &j.masters[k]; k != i && run != "" && other.run == run {
			j.lose(k)
			other.run = ""
		}
	}
	if m.run != "" && m.run != run {
		j.keepRivals(now)
	}
	if m.run, m.started = run, (time.Time{}); server.HasUptime {
		m.started = server.Received.Add(time.Second - max(server.Uptime, 0)) // an uptime is negative if the server's clock was set back
	}
	j.reach(now, i)
	j.Look(now)
}

// Answered reads a master's reply to a beat. It reports whether the server has lost its data since its last reply.
func (j *Judge) Answered(now time.Time, i int, b *protocol.Beat, sent time.Time, reply protocol.Reply) (lost bool) {
	m := &j.masters[i]
	beats := reply.Answer.(*protocol.Beats)
	lost = m.born != 0 && beats.Born != m.born && m.bornRun == m.run && reply.Time-m.time < protocol.BeatMemory.Microseconds()/2
	if lost {
		j.keepRivals(now)
	}
	m.born, m.time, m.bornRun, m.sent = beats.Born, reply.Time, m.run, sent
	for line := range strings.Lines(beats.Lines) {
		if p, ok := parse(strings.TrimSuffix(line, "\n"), now, j.known); ok {
			j.hear(now, p)
		}
	}
	j.heard(now, i, b, sent)
	return lost
}

// Knew returns the beginning of a master's memory, according to the master's earlier replies, or 0.
func (j *Judge) Knew(now time.Time, i int) int64 {
	if m := &j.masters[i]; m.run != "" && m.bornRun == m.run && before(now, m.sent.Add(protocol.BeatMemory/2)) {
		return m.born
	}
	return 0
}

// KnowsNothing treats a master as if it had replied that it knows no other process. The master denies the beats; or it is a Redis Cluster, of which
// the node with the beats is down, while other nodes still grant locks.
func (j *Judge) KnowsNothing(now time.Time, i int, b *protocol.Beat, sent time.Time) {
	j.heard(now, i, b, sent)
}

// keepRivals makes incompatible processes that lock stay rivals for as long from now on as masters remember a process, because a master may have
// forgotten them. Such a process will send its beat again, but perhaps not at once: if it was suspended, it first waits for its restart guard.
func (j *Judge) keepRivals(now time.Time) {
	for _, p := range j.known {
		if p.Since > begins && !j.compatible(p) {
			p.apart = now
		}
	}
}

func (j *Judge) heard(now time.Time, i int, b *protocol.Beat, sent time.Time) {
	j.reach(now, i)
	if j.since != waits && b.Number > j.entered {
		j.masters[i].answered = sent
	}
	if b.Since != j.since || b.Kind != j.kind() {
		j.again = true
	}
	j.Look(now)
}

// hear notes another process's beat. The latest beat counts, whichever master reports it.
func (j *Judge) hear(now time.Time, p Process) {
	former := j.known[p.ID]
	switch {
	case p.ID == j.id:
		return
	case former == nil:
		p.met = now
	case p.Number < former.Number:
		return
	case p.Number == former.Number && p.Told.Before(former.Told):
		p.Told = former.Told
	}
	if former != nil {
		p.met, p.unlike, p.apart = former.met, former.unlike, former.apart
	}
	j.known[p.ID] = &p
}

// Failed notes that a master has given no reply to a beat. gone reports whether nothing listens at the master's address.
func (j *Judge) Failed(now time.Time, i int, b *protocol.Beat, gone bool) {
	if b.Number <= j.entered {
		j.again = true
	} else {
		j.masters[i].gone = gone
	}
	j.lose(i)
	j.Look(now)
}

// Missed notes that a master hasn't answered a beat when the next one is due.
func (j *Judge) Missed(now time.Time, i int) {
	j.lose(i)
	j.Look(now)
}

// Refused notes that a master denies this process its beats.
func (j *Judge) Refused(now time.Time, i int, b *protocol.Beat, sent time.Time, err error) {
	j.noteOnce("refused", "master refuses to be told of this process, so its masters can't be compared with those of other processes",
		"master", j.own.Masters[i].Name, "error", err)
	j.KnowsNothing(now, i, b, sent)
}

func (j *Judge) tellOfOthers(now time.Time) {
	var other *Process
	for _, p := range j.known {
		if p.Wire != j.own.Wire {
			j.noteOnce(fmt.Sprint("wire ", p.Wire), "another process keeps its locks on the masters in another way: the process that was here first goes on, the other waits until it is gone (docs/operations.md)",
				"its version", p.Version, "our version", j.own.Version, "process", p.Name)
		} else if incompatible := !j.compatible(p); incompatible && (p.differs() || j.since == waits) {
			j.noteOnce(p.About.String(), "another process has other masters, and both could hold the same lock: the process that was here first goes on, the other waits until it is gone (docs/operations.md)",
				"its masters", p.About.String(), "our masters", j.own.String(), "process", p.Name)
		}
		// A difference in servers counts only after two beats, in which p may notice that a server has restarted. A different number of masters
		// counts at once.
		if p.Since != waits && p.Wire == j.own.Wire && (p.differs() || len(p.Masters) != len(j.masters)) && (other == nil || p.before(other)) {
			other = p
		}
		if p.MaxTTL > j.own.Covers || j.own.MaxTTL > p.Covers && p.Told.Sub(p.met) >= Settled { // the process is still there
			j.noteOnce(fmt.Sprint("ttl ", p.MaxTTL, p.Covers), "another process has a longer max ttl than this one's restart guard covers, or the other way round: a restarted master may forget a lock that is still valid (docs/operations.md)",
				"its max ttl", ms(p.MaxTTL), "its guards cover", ms(p.Covers), "our max ttl", ms(j.own.MaxTTL), "ours cover", ms(j.own.Covers), "process", p.Name)
		}
	}
	switch {
	case other != nil && j.changing.IsZero():
		j.changing = now
		j.note(slog.LevelInfo, "another set of masters is in use: the masters are being changed, or the configurations differ", "its masters", other.About.String(), "our masters", j.own.String(), "process", other.Name)
	case other != nil:
		j.changing = now
	case !j.changing.IsZero() && now.Sub(j.changing) >= Settled && j.since > begins && j.up() >= j.own.quorum(): // masters report one process of each kind, so none with other masters is left
		j.changing = time.Time{}
		j.note(slog.LevelInfo, "all processes have the same masters now, and no lock of another set is left: the next step of a change can be taken", "masters", j.own.String())
	}
}

func (j *Judge) note(level slog.Level, text string, args ...any) {
	j.notes = append(j.notes, Note{level, text, args})
}

const maxLogged = 30

func (j *Judge) noteOnce(about, text string, args ...any) {
	switch {
	case j.logged[about]:
		return
	case len(j.logged) > maxLogged:
		clear(j.logged)
	}
	j.logged[about] = true
	j.note(slog.LevelError, text, args...)
}

// conflict returns the reason why this process must not lock beside another one. The other process's masters have majorities that may share no server
// with ours, or its version has a different wire.
func (j *Judge) conflict(other *Process) error {
	if other.Wire != j.own.Wire {
		return fmt.Errorf("another process keeps its locks on the masters in another way, and was here first: %s has version %s, and ours is %s; end all processes of one of the two versions (docs/operations.md, Upgrading)", other.Name, other.Version, j.own.Version)
	}
	return fmt.Errorf("another process with other masters was here first, and both could hold the same lock: the masters of %s are %v; ours are %v; configure the same masters everywhere, or change one at a time (docs/operations.md)", other.Name, &other.About, &j.own)
}
