// Package link sends commands to masters. Each master gets its commands in order, over one connection. Long results go over a second connection.
package link

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock/internal/admission"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
)

const (
	renewalsAtOnce = 64 // the largest number of renewals in one batch

	maxQueue  = 4096                   // the largest number of acquires that may be queued for one master
	maxBytes  = 1 << 20                // a batch gets no further command once its results have this many bytes
	closeTime = 10 * time.Second       // how long Close waits for a connection to end; a connection from a user's dialer may never end
	OwedGap   = 250 * time.Millisecond // the time between repetitions of a release that a master has missed
)

// Stream sends commands to one master, in order. Commands are sent in batches, and a batch may have commands of several callers. The stream sends
// several batches before the first is answered.
//
// The order makes releases reliable: the master reads a release after its acquire, however late it reads both. No caller is blocked by a stream:
// callers push their commands, and leave when their own timeout is over.
//
//	push ──► queue ──► send (the caller if no other batch is under way, else write) ──► flight ──► read (or a caller: see solo) ──► settle
type Stream struct {
	Settings
	master     protocol.Master
	latency    latency
	Clock      *admission.Clock
	seat       *admission.Seat
	subscribed atomic.Bool   // the master sends this process wake-ups
	denied     atomic.Bool   // the master has refused the subscription to wake-ups
	work       chan struct{} // signals write that there may be something to send
	tend       chan struct{} // signals watch that something may be due
	cancel     func()
	ended      chan struct{}
	Lane       *Lane
	whole      Whole // the master with several servers, of which this stream's server is one; nil if the server is the whole master

	mu              *sync.Mutex   // shared by all streams to one master
	conn            protocol.Conn // nil while there is no connection
	can             protocol.ConnCapabilities
	sending         bool // a goroutine is sending a batch, without holding mu
	solo            solo // lets a caller that is alone read its own reply
	queue           commands
	renewals        commands // Fast extends: each batch takes only some of them, so that other commands don't wait behind all of them
	acquires        int
	owed            commands   // releases that must be repeated, in the order in which they are due
	flight          []*batch   // batches that were sent and not yet answered, the oldest first
	spare           *batch     // an empty batch, reused for its capacity
	answeredAt      time.Time  // when the master last answered, or conn was made
	usedAt          time.Time  // when the master last answered or was probed
	tellsMemory     bool       // the server reports how much memory it uses
	memoryAt        time.Time  // when the server was last asked how much memory it uses, or greeted
	resent          []string   // the tokens of plain releases (LREM) that had no effect, and are sent again as scripts
	sendEnded       *sync.Cond // signals that a goroutine has stopped sending on an old connection
	connectingSince time.Time  // when the last connection ended or, before the first one, when the stream was made

	connectedAt time.Time

	downUntil time.Time     // the time until which acquires are refused
	downErr   error         // the reason why there is no connection, or why the connected server takes no locks
	pause     time.Duration // how long acquires were refused after the last failure; 0 again once a connection has worked for MostPause
	away      absence
	unusable  error // the error with which the server refused the last acquire or trial; nil if it answered it
	isSlow    bool  // the master counted as slow at the last check
	health
	closing bool
}

type Settings struct {
	MaxTTL  time.Duration // the longest TTL of any lock of this process
	Timeout time.Duration // the configured timeout of the master; its latency may lengthen it
	Prefix  string
	Solo    time.Duration // the time between two looks of a resting reader: see solo; 0 with several masters, where callers don't read replies
	Logger  *slog.Logger
	Watcher Watcher
}

// Watcher is notified when a master becomes available or fails. Its methods must not block.
type Watcher interface {
	Up(name string)
	Down(State)
}

// Whole is a master with several servers, each of which has some of the keys. Each server's stream is a part.
type Whole interface {
	// Elsewhere sends a command to another part if the given part's server doesn't have the key, or the given part has ended. It returns false if it
	// has not taken the command.
	Elsewhere(part *Stream, c *Command) bool
	// Has reports whether a part's server has the key. Callers hold the mutex of the parts.
	Has(part *Stream, key string) bool
}

// NewStream makes the stream of a master and begins to connect. It uses a server only if the seat admits it.
func NewStream(m protocol.Master, o Settings, seat *admission.Seat) *Stream {
	return NewPart(m, o, seat, nil, new(sync.Mutex))
}

// NewPart is NewStream for a part of a master. All parts share one mutex, because a command may move from one part to another.
func NewPart(m protocol.Master, o Settings, seat *admission.Seat, whole Whole, mu *sync.Mutex) *Stream {
	s := makeStream(m, o, seat, whole, mu)
	var ctx context.Context
	ctx, s.cancel = context.WithCancel(context.Background())
	go s.run(ctx)
	return s
}

func makeStream(m protocol.Master, o Settings, seat *admission.Seat, whole Whole, mu *sync.Mutex) *Stream {
	s := &Stream{
		master:          m,
		Settings:        o,
		whole:           whole,
		mu:              mu,
		latency:         latency{floor: o.Timeout},
		Clock:           seat.Clock,
		seat:            seat,
		work:            make(chan struct{}, 1),
		tend:            make(chan struct{}, 1),
		ended:           make(chan struct{}),
		connectingSince: time.Now(),
	}
	s.sendEnded = sync.NewCond(s.mu)
	s.solo = newSolo(s.mu, o.Solo, func() bool { return len(s.flight) > 0 })
	s.Lane = newLane(s)
	seat.OnReached = s.greeted
	return s
}

// greeted uses the round trip of a greeting as the first measurement of the latency.
func (s *Stream) greeted(reached protocol.Server) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tellsMemory = reached.Memory.Used > 0
	if reached.Received.After(reached.Sent) {
		s.latency.observe(reached.Received.Sub(reached.Sent), reached.Received)
	}
}

func (s *Stream) ConnectTime() time.Duration {
	return max(time.Second, protocol.ConnectTrips*s.latency.ceiling())
}

func (s *Stream) SendSoon() { Signal(s.work) }

// At returns this stream for all keys, because the master is one server.
func (s *Stream) At(string) *Stream { return s }

// Divided is false, because the master is one server.
func (s *Stream) Divided() bool { return false }

// Signal makes the receiver of c run once more. c must have capacity 1.
func Signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

func (s *Stream) String() string { return s.master.String() }

// Timeout returns how long the master may take to answer now.
func (s *Stream) Timeout() time.Duration { return s.latency.timeout() }

// MaxTimeout returns the longest timeout to which the master's latency can lead.
func (s *Stream) MaxTimeout() time.Duration { return s.latency.ceiling() }

func (s *Stream) Advice() string { return s.latency.advice() }

func (s *Stream) Subscribed() bool { return s.subscribed.Load() }

func (s *Stream) Denied() bool { return s.denied.Load() }

// Listen subscribes to the master's wake-ups. It returns when ctx ends, or when the subscription breaks or gets no sign of life.
func (s *Stream) Listen(ctx context.Context, process string, ready func(), message func(protocol.WakeUp)) error {
	err := s.master.Listen(ctx, process, max(time.Second, s.MaxTimeout()), func() {
		s.subscribed.Store(true)
		s.denied.Store(false)
		ready()
	}, message)
	s.subscribed.Store(false)
	s.denied.Store(errors.Is(err, protocol.ErrRefused))
	return err
}

// Idle reports whether there is a connection without a batch under way.
func (s *Stream) Idle() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.conn != nil && len(s.flight) == 0
}

// pending reports whether any command must still be sent, repeated or answered. Callers hold mu.
func (s *Stream) pending() bool { return s.queued() > 0 || len(s.owed) > 0 || len(s.flight) > 0 }

// queued returns how many commands wait to be sent, without the owed ones. Callers hold mu.
func (s *Stream) queued() int { return len(s.queue) + len(s.renewals) }

// Close lets the stream send the commands that are queued or owed, for at most grace. Then it closes the master, and waits for
// run to end.
func (s *Stream) Close(grace time.Duration) error {
	s.mu.Lock()
	s.closing = true
	for _, c := range s.owed {
		c.due = time.Time{}
	}
	pending := s.pending()
	s.mu.Unlock()
	if !pending {
		s.cancel()
	}
	Signal(s.tend)
	s.Lane.end()
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case <-s.ended:
	case <-timer.C:
	}
	s.cancel()
	err := s.master.Close()
	timer.Reset(max(grace, closeTime))
	select {
	case <-s.ended:
	case <-timer.C:
		err = errors.Join(err, fmt.Errorf("redlock: a connection to %s has not ended within %v, although it was closed", s.master, closeTime))
	}
	return err
}

func (s *Stream) connect(ctx context.Context) (protocol.Conn, error) {
	most := s.ConnectTime()
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	c, err := s.master.Connect(ctx, s.seat)
	if ctx.Err() == context.DeadlineExceeded && errors.Is(err, context.DeadlineExceeded) { // only the timeout has ended the context
		err = protocol.Unreachable(fmt.Errorf("it can't be connected to, or doesn't answer, within %v", most))
	}
	return c, err
}

// Push queues a command and makes the stream send it. If no other batch is under way, the caller sends the command itself, which saves a switch of
// goroutines. That can't block, because the connection is a socket with empty buffers, and the command is short. With a single master, the caller may
// also read the reply: see solo.
func (s *Stream) Push(c *Command) {
	s.mu.Lock()
	taken, err := s.accept(c)
	if taken && c.isShort() && s.conn != nil && s.can.Prompt && !s.sending && s.queued() == 1 && len(s.flight) == 0 {
		passes := c.former != nil // the command hands a lock on to another caller, who waits for the reply
		if s.flush(); passes {
			s.solo.sentForOthers()
		} else {
			s.sentAlone()
		}
		taken = false
	}
	s.mu.Unlock()
	s.Decline(c, err)
	if taken {
		s.SendSoon()
	}
}

func (s *Stream) sentAlone() {
	c := s.conn
	if c == nil {
		return
	}
	var cmds []*protocol.Command
	if len(s.flight) > 0 { // otherwise the reader has already read the reply
		cmds = s.flight[0].cmds
	}
	s.solo.sentAlone(s.can, func() {
		if err := c.Receive(cmds); err != nil {
			c.Close()
		}
		s.landed(nil)
	})
}

// Enqueue queues a command. The next push, or SendSoon, sends it.
func (s *Stream) Enqueue(c *Command) {
	s.mu.Lock()
	_, err := s.accept(c)
	s.mu.Unlock()
	s.Decline(c, err)
}

// accept queues a command, or returns the reason why not. It refuses acquires while the master is known to be down. It takes all releases that may be
// needed, until the stream is closing. Each release belongs to an acquire that was sent, so the number of releases is bounded, too. Callers hold mu.
func (s *Stream) accept(c *Command) (taken bool, err error) {
	if err = s.refusal(c.Op); err == nil && c.Op == protocol.OpRelease && c.unneeded() {
		err = errUnneeded
	}
	if c.Op == protocol.OpExtend && !c.until.IsZero() {
		c.RefillUntil = s.Clock.Earliest(c.until)
	}
	if err != nil {
		return false, err
	}
	if c.Op == protocol.OpExtend && c.Fast {
		s.renewals = append(s.renewals, c)
		return true, nil
	}
	s.queue = append(s.queue, c)
	switch {
	case c.Op == protocol.OpAcquire:
		s.acquires++
	case c.Op == protocol.OpRelease && c.Queue && c.acquire.ticket != nil:
		c.acquire.ticket.left = true // this release may be sent after the call has ended, and leave the ticket then, so the call's last release must remove it
	}
	return true, nil
}

var (
	ErrClosed   = errors.New("redlock: locker is closed")
	ErrHung     = errors.New("no reply")
	errBacklog  = fmt.Errorf("%d lock requests are already queued for this master", maxQueue)
	errUnneeded = errors.New("unneeded")
)

// Decline answers a command with err, because the stream doesn't send it. It does nothing if err is nil.
func (s *Stream) Decline(c *Command, err error) {
	if err == nil {
		return
	}
	if errors.Is(err, ErrHung) {
		s.note(err)
		Signal(s.tend)
	}
	if err != errUnneeded {
		c.Reply.Err = protocol.Unsent(err)
	}
	if err == ErrClosed && s.whole != nil && s.whole.Elsewhere(s, c) {
		return
	}
	c.deliver()
	if former := c.takeFormer(); former != nil { // the former release must be sent, although the acquire isn't
		s.Push(former)
	}
}

// refusal returns the reason why commands of this operation are refused now, or nil. Callers hold mu.
func (s *Stream) refusal(op protocol.Op) error {
	now := time.Now()
	silent := s.silence(now)
	// Renewals go even to a server that is slow, or that takes no new locks, because a held lock must not be lost for that.
	renews := op == protocol.OpExtend && s.conn != nil && s.queued() < maxQueue
	patient := renews && silent <= s.MaxTTL
	switch {
	case s.closing:
		return ErrClosed
	case op == protocol.OpRelease:
		return nil
	case silent > s.latency.timeout() && !patient:
		return fmt.Errorf("%w for %v%s", ErrHung, silent.Round(time.Millisecond), s.latency.advice())
	case s.conn != nil && (op == protocol.OpForce || op == protocol.OpInspect || op == protocol.OpNames): // these work even if the server takes no locks
		return nil
	case s.conn == nil && s.downErr != nil, now.Before(s.downUntil) && !renews:
		return s.downErr
	case !s.Clock.Trusted(now):
		return s.Clock.Quarantined(now)
	case s.acquires >= maxQueue && !renews:
		return errBacklog
	}
	return nil
}

func (s *Stream) MayHave(ticket *TicketState) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return ticket.left || ticket.uncertain
}

// Withdraw removes this process, or one of its calls, from the queue for a key on the master. For a call, it also gives back the slot that is offered
// to the call. It does nothing while thousands of commands are queued, because only a faulty master sends so many wake-ups that aren't needed.
func (s *Stream) Withdraw(key, process string, ticket int64) {
	cmd := protocol.Command{Op: protocol.OpRelease, Key: key, Process: process, Ticket: ticket}
	if _, call := protocol.CallOf(process); call > 0 {
		cmd.Slots, cmd.Leads = protocol.MaxSlots, true
	}
	c := Forced(cmd, nil)
	s.mu.Lock()
	full := s.queued() >= maxQueue
	s.mu.Unlock()
	if full {
		return
	}
	s.Enqueue(c)
	s.SendSoon() // not Push: within it, a master in memory would answer, and its answer may call the caller again
}

func (s *Stream) Usable() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.refusal(protocol.OpAcquire) == nil
}

// silence returns how long the oldest batch in flight has waited for its reply. Callers hold mu.
func (s *Stream) silence(now time.Time) time.Duration {
	if len(s.flight) == 0 {
		return 0
	}
	return now.Sub(s.flight[0].sentAt)
}

// Patience returns how long a caller should wait for the reply to a command that is pushed now: the master's timeout and, while a connection is being
// made, the rest of the time for that. If the round trip is known, the connection may take a few round trips. Otherwise a master that hangs would
// delay callers for as long as a first connection may take.
func (s *Stream) Patience() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	patience := s.latency.timeout()
	if s.conn == nil && s.downErr == nil {
		connecting := s.ConnectTime()
		if trip := s.latency.current.Load(); trip > 0 {
			connecting = protocol.ConnectTrips * time.Duration(trip)
		}
		patience += max(0, connecting-time.Since(s.connectingSince))
	}
	return patience
}

type batch struct {
	commands []*Command
	cmds     []*protocol.Command
	fast     []*Command // Fast acquires, which nextBatch then appends to the other commands of the queue
	recalls  []*Command // those of them that ask for results
	sentAt   time.Time
	users    int // how many goroutines use the batch: one sends it, and one settles it, perhaps before Send has returned
}

// flush sends one batch from the queue. If the batch is answered at once, flush settles it. Callers hold mu; flush unlocks it while it sends.
func (s *Stream) flush() {
	b, dropped := s.nextBatch()
	c, sends := s.conn, len(b.commands) > 0
	if sends {
		s.sending = true
		s.flight = append(s.flight, b)
	} else {
		s.spare = b
	}
	s.mu.Unlock()
	for _, c := range dropped {
		c.deliver()
	}
	if sends {
		answered, err := c.Send(b.cmds)
		if err != nil {
			c.Close() // the reader notices that, and the connection is replaced
		}
		if answered {
			s.landed(nil)
		}
	}
	s.mu.Lock()
	if sends { // otherwise sending may be set by another goroutine
		s.sending = false
		s.finished(b)
		if s.conn != c {
			s.sendEnded.Broadcast()
		}
	}
	if s.queued() > 0 {
		s.SendSoon()
	} else if s.closing && !s.pending() { // all remaining commands have been dropped
		Signal(s.tend)
	}
}

// nextBatch moves commands from the head of the queue, and from the renewals, into a batch. It returns the unneeded commands, which it drops.
//
// Fast acquires and extends go to the end of the batch, so that the master takes all acquires together, and all extends. No release is overtaken by
// that, because a release is never in the same batch as its acquire or extend: the release of a command that isn't sent yet makes that command
// unneeded. Callers hold mu.
func (s *Stream) nextBatch() (b *batch, dropped []*Command) {
	if b = s.spare; b == nil {
		b = &batch{}
	}
	s.spare = nil
	b.sentAt, b.users = time.Now(), 2
	take := func(c *Command) {
		if c.unneeded() {
			if c.Op != protocol.OpRelease {
				c.Reply.Err = errAbandoned
			}
			dropped = append(dropped, c)
			if c = c.takeFormer(); c == nil || c.unneeded() {
				return
			}
		}
		c.sending(b.sentAt)
		switch {
		case !c.Fast || c.Op != protocol.OpAcquire:
			b.commands = append(b.commands, c)
		case c.Recall:
			b.recalls = append(b.recalls, c)
		default:
			b.fast = append(b.fast, c)
		}
	}
	n, bytes, renewals := 0, 0, min(len(s.renewals), renewalsAtOnce)
	for n < min(len(s.queue), protocol.MaxBatch-renewals) && bytes < maxBytes {
		c := s.queue[n]
		n++
		bytes += c.resultBytes()
		if c.Op == protocol.OpAcquire {
			s.acquires--
		}
		take(c)
	}
	s.queue.drop(n)
	for _, fast := range []*[]*Command{&b.fast, &b.recalls} {
		b.commands = append(b.commands, *fast...)
		clear(*fast)
		*fast = (*fast)[:0]
	}
	for _, c := range s.renewals[:renewals] {
		take(c)
	}
	s.renewals.drop(renewals)
	for _, c := range b.commands {
		b.cmds = append(b.cmds, &c.Command)
	}
	return b, dropped
}

// landed settles the oldest batch in flight, whose replies have come. If broken isn't nil, they won't come, and broken is the reply to each command.
func (s *Stream) landed(broken error) {
	s.mu.Lock()
	b := s.flight[0]
	s.flight = s.flight[:copy(s.flight, s.flight[1:])]
	s.mu.Unlock()
	if broken != nil {
		for _, cmd := range b.cmds {
			cmd.Reply = protocol.Reply{Err: broken}
		}
	}
	s.settle(b)
	s.mu.Lock()
	s.finished(b)
	more, done := s.queued() > 0, s.closing && !s.pending()
	s.mu.Unlock()
	if more {
		s.SendSoon()
	}
	if done {
		Signal(s.tend)
	}
}

// finished ends one goroutine's use of a batch. After the last use the batch is kept for its capacity. Callers hold mu.
func (s *Stream) finished(b *batch) {
	if b.users--; b.users == 0 {
		clear(b.commands)
		clear(b.cmds)
		b.commands, b.cmds = b.commands[:0], b.cmds[:0]
		s.spare = b
	}
}

const (
	leastPause = 100 * time.Millisecond // the first pause before a failed master is tried again; the pause doubles with each failure
	MostPause  = time.Second            // the longest of these pauses

	memoryGap = 10 * time.Second // the time between two questions about a server's memory, if it reports that

	hungTime = 30 * time.Second // how long a connection is kept without any reply
)

func (s *Stream) run(ctx context.Context) {
	defer close(s.ended)
	var next protocol.Conn
	for s.wanted(ctx) {
		var err error
		c := next
		if c == nil {
			s.seat.Disconnected()
			c, err = s.connect(ctx)
		}
		if err == nil {
			next, err = s.serve(ctx, c)
		}
		if err != nil {
			s.unreachable(err)
			s.awaitRetry(ctx)
		}
	}
	if next != nil {
		next.Close()
	}
	s.mu.Lock()
	left := slices.Concat(s.queue, s.renewals, s.owed)
	s.queue, s.renewals, s.owed, s.acquires = nil, nil, nil, 0
	s.mu.Unlock()
	for _, c := range left {
		s.Decline(c, ErrClosed)
	}
}

func (s *Stream) wanted(ctx context.Context) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return ctx.Err() == nil && (!s.closing || s.pending())
}

// unreachable marks the master as down, because no connection could be made, or because the last one ended too soon.
func (s *Stream) unreachable(err error) {
	s.mu.Lock()
	now := time.Now()
	s.down(err, now)
	s.away.begins(err, now)
	s.mu.Unlock()
	s.answer(protocol.Unsent(err))
	s.note(err)
}

// answer answers the queued commands with err, except for releases, which stay queued for the next connection.
func (s *Stream) answer(err error) {
	s.mu.Lock()
	var kept, answered commands
	for _, c := range slices.Concat(s.queue, s.renewals) {
		if c.Op == protocol.OpRelease {
			kept = append(kept, c)
			continue
		}
		c.Reply.Err = err
		answered = append(answered, c)
		if former := c.takeFormer(); former != nil && !former.unneeded() {
			kept = append(kept, former)
		}
	}
	s.queue, s.renewals, s.acquires = kept, nil, 0
	s.mu.Unlock()
	for _, c := range answered {
		c.deliver()
	}
}

func (s *Stream) awaitRetry(ctx context.Context) {
	s.mu.Lock()
	until := s.downUntil
	s.mu.Unlock()
	rest := time.Until(until)
	if rest <= 0 {
		return
	}
	timer := time.NewTimer(rest)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// serve uses a connection until it ends. next is a connection that already replaces it, or nil. The error is nil if the connection has worked for
// MostPause. Then the next one is made without a pause. A single reply isn't enough: otherwise this process would connect without end to a server
// that closes each connection after one reply.
func (s *Stream) serve(ctx context.Context, c protocol.Conn) (next protocol.Conn, err error) {
	began := time.Now()
	s.mu.Lock()
	s.can = c.Capabilities()
	s.conn, s.connectedAt, s.answeredAt, s.usedAt, s.memoryAt = c, began, began, began, began
	if s.latency.smoothed == 0 { // no greeting has measured the latency, so probe at once
		s.usedAt = time.Time{}
	}
	s.downUntil, s.downErr = time.Time{}, nil
	// A server that has refused an acquire may refuse the next one, too, so its absence goes on. Any other absence is over.
	recovered := s.unusable == nil
	if recovered {
		s.away = absence{}
	} else {
		s.away.begins(s.unusable, began)
	}
	s.mu.Unlock()
	if recovered {
		s.note(nil)
	}
	if s.seat.OnServing != nil {
		s.seat.OnServing()
	}

	var helpers sync.WaitGroup
	broken, stop := make(chan error, 1), make(chan struct{})
	helpers.Go(func() { broken <- s.read(c) })
	helpers.Go(func() { s.write(c, stop) })
	next, err = s.watch(ctx, c, broken)

	s.mu.Lock()
	s.conn, s.connectingSince = nil, time.Now()
	s.downErr = s.away.why // if the master has hung or failed, calls don't wait for the next connection (see Patience)
	s.mu.Unlock()
	c.Close()
	close(stop)
	helpers.Wait()
	s.mu.Lock()
	for s.sending {
		s.sendEnded.Wait()
	}
	pending, useless := len(s.flight), s.answeredAt.Equal(began) || time.Since(began) < MostPause
	s.mu.Unlock()
	if err == nil {
		err = protocol.ErrBroken
	}
	for range pending {
		s.landed(err)
	}
	if useless && next == nil {
		return nil, err
	}
	return next, nil
}

func (s *Stream) read(c protocol.Conn) error {
	for {
		s.mu.Lock()
		s.solo.rest(s.can.Direct)
		s.mu.Unlock()
		if err := c.Wait(); err != nil {
			return err
		}
		s.mu.Lock()
		if len(s.flight) == 0 {
			s.mu.Unlock()
			return protocol.ErrMalformed
		}
		cmds := s.flight[0].cmds
		s.mu.Unlock()
		err := c.Receive(cmds)
		s.landed(nil)
		if err != nil {
			return err
		}
	}
}

func (s *Stream) write(c protocol.Conn, stop <-chan struct{}) {
	for {
		select {
		case <-s.work:
		case <-stop:
			return
		}
		runtime.Gosched() // goroutines that are about to push may join the batch
		s.mu.Lock()
		s.flushAll(c)
		s.mu.Unlock()
	}
}

// flushAll sends queued commands until the allowed number of batches is in flight. Callers hold mu.
func (s *Stream) flushAll(c protocol.Conn) {
	for s.conn == c && !s.sending && s.queued() > 0 && len(s.flight) < min(s.can.Window, s.latency.window()) {
		s.flush()
		s.solo.sentForOthers()
	}
}

// watch does the periodic work of a connection until it ends. next is nil, or the connection that replaces it because the server has answered only on
// next.
func (s *Stream) watch(ctx context.Context, c protocol.Conn, broken <-chan error) (next protocol.Conn, err error) {
	ctx, cancel := context.WithCancel(ctx)
	check := s.newHangCheck(ctx)
	defer check.end()
	defer cancel()
	timer := time.NewTimer(admission.ProbeGap)
	defer timer.Stop()
	look := time.Now().Add(certificateGap)
	s.SendSoon()
	for {
		due, over := s.attend(c, check)
		if over {
			return nil, ErrClosed
		}
		if now := time.Now(); !now.Before(look) {
			look = now.Add(certificateGap)
			check.running.Go(func() { s.lookAtCertificate(ctx) })
		}
		timer.Reset(time.Until(earlier(due, look)))
		select {
		case err := <-broken:
			return nil, fmt.Errorf("%w: %w", protocol.ErrBroken, err)
		case <-ctx.Done():
			return nil, ErrClosed
		case next := <-check.replacement:
			return next, fmt.Errorf("%w: the server did not answer on it, but answers on a new one", protocol.ErrBroken)
		case <-s.tend:
		case <-timer.C:
		}
	}
}

// attend does the work that is due, and returns when it must be called again. over means that the stream is closing and has nothing left to do.
func (s *Stream) attend(c protocol.Conn, check *hangCheck) (due time.Time, over bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	n := slices.IndexFunc(s.owed, func(c *Command) bool { return c.due.After(now) })
	if n < 0 {
		n = len(s.owed)
	}
	for _, c := range s.owed[:n] {
		if ticket := c.acquire.ticket; ticket != nil && ticket.owed == c {
			ticket.owed = nil
		}
	}
	s.queue = append(s.queue, s.owed[:n]...)
	s.owed.drop(n)
	idle := s.queued() == 0 && len(s.flight) == 0
	if s.closing && !s.pending() {
		return now, true
	}
	gap := admission.ProbeGap
	if s.unusable != nil {
		gap = MostPause
	}
	if idle && now.Sub(s.usedAt) >= gap {
		s.queue = append(s.queue, &Command{Command: s.probe()})
		s.usedAt = now
	}
	if s.conn == c && s.tellsMemory && now.Sub(s.memoryAt) >= memoryGap {
		s.queue = append(s.queue, &Command{Command: protocol.Command{Op: protocol.OpMemory}})
		s.memoryAt = now
	}
	if s.queued() > 0 {
		s.SendSoon()
	}
	due = now.Add(gap)
	if idle {
		due = s.usedAt.Add(gap)
	}
	if len(s.owed) > 0 {
		due = earlier(due, s.owed[0].due)
	}
	switch silence, timeout := s.silence(now), s.latency.timeout(); {
	case silence > hungTime:
		c.Close()
	case silence > timeout:
		s.away.begins(ErrHung, now.Add(timeout-silence))
		due = earlier(due, check.start(now))
	case silence > 0:
		due = earlier(due, s.flight[0].sentAt.Add(timeout+1))
	}
	return due, false
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// settle handles the replies of a batch. It first queues commands that must be sent again, and schedules releases that must be repeated. Then it
// passes the replies on to the callers.
func (s *Stream) settle(b *batch) {
	now := time.Now()
	s.mu.Lock()
	for _, c := range b.commands {
		c.answered()
	}
	s.mu.Unlock()
	if s.whole != nil {
		b.commands = slices.DeleteFunc(b.commands, func(c *Command) bool { return s.whole.Elsewhere(s, c) })
	}
	err, known := s.verdict(b, now)
	switch {
	case errors.Is(err, protocol.ErrReplica):
		s.DataLost()
	case errors.Is(err, protocol.ErrLoading):
		s.reconnect()
	}
	s.mu.Lock()
	var settled []*Command
	again := s.repeat(b.commands)
	for _, c := range b.commands {
		if slices.Contains(again, c) {
			continue
		}
		settled = append(settled, c)
		release := c
		if c.Op == protocol.OpAcquire && c.former != nil {
			release = c.takeFormer()
			if release.Reply.Status = c.Reply.Former; release.Reply.Status == protocol.StatusNone {
				release.Reply.Err = c.Reply.Err
			}
			settled = append(settled, release)
		}
		if release.Op == protocol.OpRelease && !release.acknowledged() {
			s.owe(release, now)
		}
	}
	s.mu.Unlock()
	for _, c := range settled {
		c.deliver()
	}
	if known {
		s.note(err)
	}
}

// DataLost excludes the master until all leases have ended that its server may have forgotten, and makes the stream connect again.
func (s *Stream) DataLost() {
	s.seat.DataLost(time.Now())
	s.reconnect()
}

// Lost reports whether the master is excluded now because its server lacks the locks that it had granted.
func (s *Stream) Lost() bool { return time.Now().Before(s.seat.LostUntil()) }

// reconnect closes the connection; run makes a new one.
func (s *Stream) reconnect() {
	s.mu.Lock()
	c := s.conn
	s.mu.Unlock()
	if c != nil {
		c.Close()
	}
}

// verdict returns the reason why the master is unusable, according to its replies, or nil if it is usable. known is false if the replies don't show
// whether it is.
func (s *Stream) verdict(b *batch, now time.Time) (err error, known bool) {
	var clock int64
	var votes, lives bool
	for _, c := range b.commands {
		refused := errors.Is(c.Reply.Err, protocol.ErrRefused)
		switch asks := c.Op == protocol.OpAcquire || c.Op == protocol.OpTrial; {
		case c.Op == protocol.OpMemory && refused: // a user without the right to INFO may still get locks
			lives = true
		case errors.Is(c.Reply.Err, protocol.ErrUnusable):
			err = c.Reply.Err
		case c.Reply.Err == nil && asks:
			votes = true
		case c.Reply.Err == nil || refused: // the server answers, even if it has refused this one command
			lives = true
		case err == nil:
			err = c.Reply.Err
		}
		switch answer := c.Reply.Answer.(type) {
		case *protocol.Memory:
			s.seat.HasMemory(*answer)
		case *protocol.Beats:
			s.Clock.RaiseMark(answer.Mark)
		}
		clock = max(clock, c.Reply.Time)
	}
	if votes || lives && !errors.Is(err, protocol.ErrUnusable) {
		err = nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if clock > 0 {
		s.Clock.Observe(clock, b.sentAt, now)
	}
	if fault := s.Clock.Fault(b.sentAt); fault != nil {
		// A jump of the clock also invalidates the replies to commands that were sent before the jump was noticed.
		for _, c := range b.commands {
			if c.Reply.Err == nil && (c.Op == protocol.OpAcquire || c.Op == protocol.OpExtend) {
				c.Reply = protocol.Reply{Err: fault, Former: c.Reply.Former}
			}
		}
		err = cmp.Or(err, fault)
	}
	if err == nil || lives || votes {
		s.answeredAt, s.usedAt = now, now
		s.latency.observe(now.Sub(b.sentAt), now)
	}
	switch {
	case err != nil:
		s.away.begins(err, now)
		refuses := errors.Is(err, protocol.ErrUnusable)
		if refuses || errors.Is(err, protocol.ErrUnreachable) {
			s.down(err, now)
		}
		if refuses && s.unusable == nil {
			Signal(s.tend) // so that the server soon gets a trial
		}
		if refuses {
			s.unusable = err
		}
	case !votes && s.unusable != nil:
		s.away.begins(s.unusable, now)
		return nil, false
	default:
		s.away, s.unusable = absence{}, nil
		s.downUntil, s.downErr = time.Time{}, nil
		if now.Sub(s.connectedAt) >= MostPause {
			s.pause = 0
		}
	}
	return err, true
}

// repeat puts commands that had no effect back at the head of the queue, in their order, and returns them:
//   - calls of scripts that the server doesn't have;
//   - Fast commands that need the full script;
//   - plain releases (LREM) of a key for which a process waits, which are sent again as the script that wakes the process;
//   - acquires that were refused only because such a release, sent before them, had no effect.
//
// It skips commands whose callers have left. The releases of these commands may be in flight already, and must not be overtaken. Callers hold mu.
func (s *Stream) repeat(answered []*Command) (again []*Command) {
	for _, c := range answered {
		release := c.Op == protocol.OpRelease
		if release && len(s.resent) > 0 {
			s.resent = slices.DeleteFunc(s.resent, func(token string) bool { return token == c.Token })
		}
		noScript := errors.Is(c.Reply.Err, protocol.ErrNotExecuted) && c.moves < maxMoves
		inVain := c.Alone && c.Reply.Status == protocol.StatusExpired
		overtook := c.Reply.Status == protocol.StatusHeld && slices.Contains(s.resent, c.Reply.Holder)
		if !noScript && !inVain && !overtook || !release && c.givenUp() {
			continue
		}
		if release {
			s.resent = append(s.resent, c.Token)
		}
		if noScript {
			c.moves++
		}
		c.Alone, c.Fast, c.Reply = false, false, protocol.Reply{}
		if c.Op == protocol.OpAcquire {
			s.acquires++
		}
		again = append(again, c)
	}
	if len(again) > 0 {
		s.queue = slices.Insert(s.queue, 0, again...)
	}
	return again
}

// owe schedules the repetition of a release. It doesn't if the attempt can't have left anything on the master any more, or if the stream is closing
// and the master has answered. A release that leaves a ticket is repeated without the ticket, because the call may have left the queue since. Callers
// hold mu.
func (s *Stream) owe(release *Command, now time.Time) {
	until := later(release.until, release.acquire.mayTake.Add(4*OwedGap))
	if !now.Before(until) || s.closing && (release.Reply.Err == nil || errors.Is(release.Reply.Err, protocol.ErrRefused)) {
		return
	}
	again := *release
	again.moves = 0
	again.To, again.Reply = nil, protocol.Reply{}
	again.until, again.due = until, now.Add(OwedGap)
	if again.Queue {
		again.Queue, again.Ticket = false, 0
	}
	if a := again.acquire; again.Ticket > 0 && a.ticket != nil && !a.mayHold && !a.extended {
		// The master can have nothing of this attempt but the call's ticket. One release removes it, however many attempts of the call have failed.
		if owed := a.ticket.owed; owed != nil {
			owed.until = later(owed.until, until)
			return
		}
		a.ticket.owed = &again
	}
	s.owed = append(s.owed, &again)
	if len(s.owed) == 1 {
		Signal(s.tend)
	}
}

// down refuses acquires until the restart guard is over. Without a guard, it refuses them for a pause that doubles while the master keeps failing. A
// random part of up to a quarter is cut from the pause, so that the processes that have lost a master don't all come back at once. Callers hold mu.
func (s *Stream) down(err error, now time.Time) {
	s.pause = min(max(2*s.pause, leastPause), MostPause)
	s.downErr, s.downUntil = err, now.Add(s.pause-rand.N(s.pause/4))
	var guard *admission.GuardError
	if errors.As(err, &guard) {
		s.downUntil = guard.Until
	}
}

// note logs and reports when the master becomes usable or unusable. A further failure of an unusable master is logged only if the master may have
// forgotten its locks, turns out to be slow, or refuses locks after it was slow.
func (s *Stream) note(err error) {
	now := time.Now()
	s.mu.Lock()
	if err == nil || errors.Is(err, ErrHung) { // whether the master is slow depends on the replies of the last minute, rather than on the last one
		slow := s.latency.slow(s.isSlow, s.silence(now), now)
		if s.isSlow = slow != nil; s.isSlow {
			err = slow
		}
	}
	changed := !s.closing && s.learn(err, now)
	s.mu.Unlock()
	name := s.master.String()
	switch {
	case !changed:
		return
	case err == nil:
		s.Logger.Info("master available again", "master", name)
		s.Watcher.Up(name)
		return
	case errors.Is(err, admission.ErrNoVote):
		s.Logger.Error("master excluded from the quorum", "master", name, "error", err)
	default:
		s.Logger.Warn("master unavailable", "master", name, "error", err)
	}
	s.Watcher.Down(s.stateWith(err))
}

func (s *Stream) newHangCheck(ctx context.Context) *hangCheck {
	return &hangCheck{stream: s, ctx: ctx, replacement: make(chan protocol.Conn, 1)}
}

func (s *Stream) lastReply() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.answeredAt
}

// probe returns the command for an idle connection: a trial for a server that has refused locks, and otherwise a ping. Callers hold mu.
func (s *Stream) probe() protocol.Command {
	if s.unusable != nil {
		if key := s.trialKey(); key != "" {
			return protocol.Command{Op: protocol.OpTrial, Key: key, TTL: time.Second, Ask: &protocol.Trial{Channel: s.Prefix + ":wake:"}}
		}
	}
	return protocol.Command{Op: protocol.OpPing}
}

// trialKey returns a key that belongs to this server and is no lock's, or "" if it finds none. Callers hold mu.
func (s *Stream) trialKey() string {
	const most = 1 << 16
	for i := range most {
		key := fmt.Sprintf("%s:trial:{%d}", s.Prefix, i)
		if s.whole == nil || s.whole.Has(s, key) {
			return key
		}
	}
	return ""
}

// Fails reports whether the server hasn't executed its last command in time, or is slow.
func (s *Stream) Fails() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.works(time.Now())
}

// works reports whether the server has executed its last command in time, and isn't slow. It ignores the reported state, because after a short
// failure of the network all masters may be reported as failed at once. Callers hold mu.
func (s *Stream) works(now time.Time) bool {
	return s.conn != nil && s.away.since.IsZero() && s.silence(now) <= s.latency.timeout() && s.slow(now) == nil
}

// slow returns an ErrSlow with the present numbers if the master is slow, or nil. Callers hold mu.
func (s *Stream) slow(now time.Time) error {
	if !s.isSlow {
		return nil
	}
	return s.latency.slow(true, s.silence(now), now)
}

// Away returns the time since which the master hasn't executed its commands, as far as this process knows, and the reason. The time is zero if the
// master works.
func (s *Stream) Away(now time.Time) (since time.Time, why error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	since, why = s.away.since, s.refusal(protocol.OpAcquire)
	if silence, timeout := s.silence(now), s.latency.timeout(); since.IsZero() && silence > timeout {
		since = now.Add(timeout - silence)
	}
	if why == nil {
		why = s.away.why
	}
	return since, why
}

// Leads returns a name for the master's server that is the same in all processes. It also reports whether the server can lead, that is, offer the
// free slots of keys with several holders.
func (s *Stream) Leads() (name string, can bool) {
	now := time.Now()
	s.mu.Lock()
	can = s.works(now) && s.Clock.Trusted(now)
	s.mu.Unlock()
	return cmp.Or(s.seat.VotesAs(), s.String()), can
}

func (s *Stream) Shows(now time.Time) (clock time.Duration, known bool) { return s.Clock.Shows(now) }

func (s *Stream) State() State {
	now := time.Now()
	s.mu.Lock()
	err := s.refusal(protocol.OpAcquire)
	asked := s.conn != nil && err == nil
	switch slow := s.slow(now); {
	case s.conn != nil && slow != nil && (err == nil || errors.Is(err, ErrHung)):
		err = slow
	case s.conn == nil || err != nil:
	case s.away.why != nil: // the pause after a failure is over, but no later command has shown that the master works
		err, asked = s.away.why, false
	case !s.wellSince.IsZero():
		err = &probationError{s.reported, s.probation}
	default:
		err = s.reported // nil, or the failure that is still reported
	}
	s.mu.Unlock()
	state := s.stateWith(err)
	state.Asked = asked
	return state
}

// stateWith returns the state of the master, with err as the reason why it isn't available, or nil if it is.
func (s *Stream) stateWith(err error) State {
	server := s.seat.LastReached()
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	var since time.Time
	if err != nil && s.reported != nil {
		since = s.illSince
	}
	return State{
		Since:       since,
		Name:        s.String(),
		Err:         err,
		Connected:   s.conn != nil,
		Resumes:     s.Clock.Resumes(),
		CountsFrom:  s.countsFrom(),
		Late:        s.latency.recent.share(now),
		RoundTrip:   time.Duration(s.latency.last.Load()),
		ClockOffset: s.Clock.Offset(now),
		Server:      server,
	}
}
