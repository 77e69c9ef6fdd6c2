// Package heartbeat judges whether a process may lock beside others that have other masters. Every two seconds the process tells each of its masters
// which servers it reaches, and whether it locks; the reply says what other processes have told. A Judge gets the masters' replies and the time; it
// has no clock, asks nobody, and starts nothing. docs/DESIGN.md has the rule.
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
	// Every is the time between two beats. It is shorter than the time for which a fence is remembered: when a master's clock is set back, the
	// processes know the latest time that it showed one beat ago.
	Every = 2 * time.Second
	// Settled is how long a process may take to notice that a server has restarted.
	Settled = 2 * Every
	// Grace is how long a process that is about to lock waits for masters that don't answer.
	Grace = Every / 4
)

// Judge knows the masters' replies to one process, and decides whether the process may lock. It isn't safe for concurrent use.
type Judge struct {
	id      string
	own     About
	masters []master
	number  int64
	entered int64               // the last beat before the present state: a master that answers a later one knows the state
	since   int64               // since when the process locks, on the masters' clocks in microseconds; or begins, or waits
	began   time.Time           // since when the process has been about to lock
	next    time.Time           // the process isn't about to lock again before this time
	known   map[string]*Process // other processes that some master still remembers, by ID
	refusal error               // the reason if no lock may be taken now, or nil
	pause   func() time.Duration

	logged   map[string]bool // subjects that the log has already had
	changing time.Time       // when processes with other masters last locked; zero if none has, or after the log said that none does any more
	notes    []Note
	again    bool // the masters must get a beat soon
}

type master struct {
	run      string    // the run of the last server; empty if none was reached, or if the server doesn't tell
	started  time.Time // when that server was started, or up to a second later; zero if the server doesn't tell
	up       bool      // the master has answered the last beat, or was reached after it
	gone     bool      // nothing listens at the master's address
	answered time.Time // when the last beat with the present state was sent that the master has answered; zero if there is none

	time, born int64     // the master's clock in its last reply, and since when it remembers
	bornRun    string    // the run of the server that sent that reply
	sent       time.Time // when the beat was sent that got that reply
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

// Begins reports whether the process is about to lock: then Look must be called again soon.
func (j *Judge) Begins() bool { return j.since == begins }

// Refusal returns the reason why no lock may be taken now, or nil. It is also nil before the masters have answered.
func (j *Judge) Refusal() error { return j.refusal }

// Notes returns the log entries since the last call.
func (j *Judge) Notes() []Note {
	notes := j.notes
	j.notes = nil
	return notes
}

// Again reports whether, since the last call, something has changed that the masters must hear soon.
func (j *Judge) Again() bool {
	again := j.again
	j.again = false
	return again
}

// Until returns the time until which the process may lock without a further beat. Until then, a quorum of the masters remembers that the process
// locks. The time is zero if the process may not lock.
func (j *Judge) Until() time.Time {
	if j.since <= begins {
		return time.Time{}
	}
	return j.remembered()
}

// remembered returns until when a quorum certainly remembers that the process locks, or is about to.
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

// before reports whether now is before t by both the monotonic and the wall clock, because the monotonic clock stops while the host is suspended.
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

// rivals returns an incompatible process that locks or is about to, and one that has locked for longer than this process, which must stop then. A
// locking process may have lost, only for a moment, the masters that make it incompatible. So it stays a rival for as long as masters remember a
// process.
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

// before decides which of several rivals the log names.
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

// stop makes the process stop locking, or wait, because of another process. It tries again after a random pause, so that two processes that begin at
// the same time don't block each other forever.
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
	if j.since == begins { // the masters don't know this run yet
		j.begin(now)
	}
}

// lose notes that a master isn't reached, and so can't vote.
func (j *Judge) lose(i int) {
	j.masters[i].up, j.own.Masters[i].Run = false, ""
}

// decide lets a process that is about to lock do so, if no other process prevents it.
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
	case !before(now, j.began.Add(Every)): // the first replies are too old by now
		j.begin(now)
	case !complete:
	case answered < j.own.quorum(): // the process must not block others meanwhile, and tries again when masters have answered
		for i := range j.masters {
			if j.masters[i].answered.IsZero() {
				j.lose(i)
			}
		}
		j.become(waits)
	default: // lock since the present time on most masters' clocks
		if len(times) == 0 { // no master has told its time
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

// kind returns a word that processes with the same servers and settings share. A process that knows the eldest of a kind need not know the others.
func (j *Judge) kind() string {
	runs := j.own.runs()
	slices.Sort(runs)
	return fmt.Sprintf("%d/%d/%d/%d/%s", j.own.Wire, j.own.MaxTTL, j.own.Covers, len(j.masters), strings.Join(runs, ","))
}

// Reached notes, before the server votes, which server a master's address now leads to. The server may have had a different address before. lostUntil
// is the time until which the server is excluded because it has lost its data; that loss isn't a new one.
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
		m.started = server.Received.Add(time.Second - max(server.Uptime, 0)) // the uptime is negative if the server's clock was set back
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

// Knew returns since when a master remembers, according to its earlier replies, or 0.
func (j *Judge) Knew(now time.Time, i int) int64 {
	if m := &j.masters[i]; m.run != "" && m.bornRun == m.run && before(now, m.sent.Add(protocol.BeatMemory/2)) {
		return m.born
	}
	return 0
}

// KnowsNothing treats a master as one that knows no process. Such a master denies the beats, or is a Redis Cluster in which the node with the beats
// is down, while its other nodes still grant locks.
func (j *Judge) KnowsNothing(now time.Time, i int, b *protocol.Beat, sent time.Time) {
	j.heard(now, i, b, sent)
}

// keepRivals remembers incompatible processes that lock for as long from now on as masters remember a process, because a master may have forgotten
// them. Such a process will send its beat again, but perhaps not at once: a process that was suspended meanwhile waits for its restart guard first.
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

// hear notes another process's beat. The latest beat counts, whichever master has it.
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

// Failed notes that a master has given no reply to a beat; gone says that nothing listens there.
func (j *Judge) Failed(now time.Time, i int, b *protocol.Beat, gone bool) {
	if b.Number <= j.entered {
		j.again = true
	} else {
		j.masters[i].gone = gone
	}
	j.lose(i)
	j.Look(now)
}

// Missed notes that a master hasn't answered a beat before the next is due.
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
		// Servers other than ours count only after two beats, in which p may notice that a server has restarted. Another number of masters counts at once.
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
	case !j.changing.IsZero() && now.Sub(j.changing) >= Settled && j.since > begins && j.up() >= j.own.quorum(): // of equals, masters name one
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

// conflict returns the reason why a process must not lock: the masters of another process have majorities that may share no server with ours, or
// its version has a different wire.
func (j *Judge) conflict(other *Process) error {
	if other.Wire != j.own.Wire {
		return fmt.Errorf("another process keeps its locks on the masters in another way, and was here first: %s has version %s, and ours is %s; end all processes of one of the two versions (docs/operations.md, Upgrading)", other.Name, other.Version, j.own.Version)
	}
	return fmt.Errorf("another process with other masters was here first, and both could hold the same lock: the masters of %s are %v; ours are %v; configure the same masters everywhere, or change one at a time (docs/operations.md)", other.Name, &other.About, &j.own)
}
