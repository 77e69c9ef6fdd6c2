package protocol

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Master is one independent lock server.
type Master interface {
	// String names the master in logs and errors. It contains no credentials.
	fmt.Stringer

	// Capabilities doesn't change while a connection lasts.
	Capabilities() Capabilities

	// Connect makes a connection before ctx ends. admits decides whether the server that was reached may vote; nil admits any server. If admits
	// returns an error, Connect makes no connection.
	Connect(ctx context.Context, admits Admission) (Conn, error)

	// Listen passes on the messages that the server publishes for this process, over a separate connection. It calls ready when it can't miss a
	// message any more. It returns when ctx ends, when the connection breaks, or when the server, asked for a sign of life, is silent for longer than
	// patience. ready and message don't block.
	Listen(ctx context.Context, process string, patience time.Duration, ready func(), message func(WakeUp)) error

	// Close closes the connections that the master itself has open.
	Close() error
}

// Capabilities are the differences between masters.
type Capabilities struct {
	Local    bool // the master is in the memory of this process
	Shared   bool // other processes may have the master, too, and it tells each of them about the others
	Several  bool // several connections to the master can be made: one for results, and one in place of another that hangs
	Database int

	// Certificate makes a connection to find the time until which the server's certificate is valid; zero without TLS. Certificate is nil for masters
	// that have no certificate.
	Certificate func(ctx context.Context) (until time.Time, err error)
}

// Conn is a connection to a master. The commands take effect in the order in which they are sent.
// One goroutine at a time sends, and one receives.
type Conn interface {
	// Send sends commands, and reports whether they are already answered. After an error the connection can't be used any more, and the server may
	// have received any of the commands.
	Send(cmds []*Command) (answered bool, err error)
	// Wait blocks until a reply comes, or the connection has ended.
	Wait() error
	// Receive reads the replies to all commands of the oldest Send that hasn't been answered.
	Receive(cmds []*Command) error
	// Capabilities never change.
	Capabilities() ConnCapabilities
	Close()
}

// ConnCapabilities are the abilities of a connection. They depend on the kind of master and, for Redis, on the dialer.
type ConnCapabilities struct {
	Window int    // how many batches may wait for their replies
	Prompt bool   // a short Send doesn't block if no other batch is under way
	Direct Direct // nil: only the goroutine that receives can read
}

// Direct lets the sender of the only command under way read the reply, in place of the goroutine that receives.
type Direct interface {
	// Await blocks until Receive can read the whole reply without waiting. It returns false if Interrupt is called or the connection ends before
	// that; the part of the reply that has arrived stays for Receive.
	Await() bool
	// Interrupt ends Await; Resume lets Wait, Await and Receive wait again.
	Interrupt()
	Resume()
}

// MaxBatch bounds the commands of one Send.
const MaxBatch = 256

// MaxWindow bounds the batches under way on one connection. Callers never fill it.
const MaxWindow = 4096

// ConnectTrips bounds the round trips that it takes to make a connection. With TLS and the greeting these are about six.
const ConnectTrips = 8

// Admission decides whether a server that was just reached may vote.
type Admission interface {
	Admit(Server) error
	KeyOfBeats() string // the key of OpBeat, under which the server has the beginning of its memory of processes; empty if the server isn't to be asked for that
}

// Server is a server's description of itself when a connection to it is made.
type Server struct {
	RunID         string
	Version, Mode string
	Uptime        time.Duration // by the server's wall clock, in whole seconds, up to a second too long
	HasUptime     bool
	Role          string // "master" or "slave", in Redis's words
	Memory        Memory

	CertificateUntil time.Time // the time until which the server's certificate is valid; zero without TLS
	Past             Past

	Time           int64     // the server's clock, in microseconds since 1970; 0 if unknown
	Sent, Received time.Time // when the greeting was sent and answered; the server has read its clock in between
}

// Past shows a process that starts whether a server may have forgotten locks.
type Past struct {
	Known bool  // the server has reported its past; otherwise the other fields are zero
	Born  int64 // the time since which the server remembers processes, on its clock in microseconds; 0 if it remembers none
	Lost  bool  // a process that knew the server earlier has since told it that the server has lost its data
}

// Doubt returns how long a server must not vote for a process that meets it for the first time. A server with a young memory may just have lost its
// data. It waits for the time settled, because by then a process that knew it earlier has reported the loss with a beat. A server that is known to
// have lost its data waits until all leases have ended that it may have forgotten.
func (s Server) Doubt(settled, leases time.Duration) (rest time.Duration, lost bool) {
	age := time.Duration(min(max(s.Time-s.Past.Born, 0), MaxTime.Microseconds())) * time.Microsecond
	switch {
	case !s.Past.Known:
		return 0, false
	case s.Past.Lost:
		return max(leases-age, 0), true
	case s.Past.Born == 0:
		return settled, false
	}
	return max(settled-age, 0), false
}

// Memory is a server's description of its memory. It is zero if the server gives none.
type Memory struct {
	Used   int64  // bytes
	Max    int64  // bytes; 0 without a limit
	Policy string // maxmemory-policy: the server's rule for a full memory
}

// Evicts reports whether the server may delete keys, locks among them, when its memory is full.
func (m Memory) Evicts() bool { return m.Policy != "" && m.Policy != "noeviction" }

// Replica reports whether the server is a replica.
func (s Server) Replica() bool { return s.Role != "" && s.Role != "master" }

// TooOld reports whether the server's version of Redis lacks commands that the scripts need.
func (s Server) TooOld() bool {
	major, rest, _ := strings.Cut(s.Version, ".")
	minor, _, _ := strings.Cut(rest, ".")
	ma, errMa := strconv.Atoi(major)
	mi, errMi := strconv.Atoi(minor)
	return errMa == nil && errMi == nil && (ma < 6 || ma == 6 && mi < 2)
}

// Immediate is a connection on which the function Do answers commands at once.
type Immediate struct {
	Do     func(cmds []*Command)
	closed chan struct{}
	end    func()
}

func NewImmediate(do func(cmds []*Command)) *Immediate {
	c := &Immediate{Do: do, closed: make(chan struct{})}
	c.end = sync.OnceFunc(func() { close(c.closed) })
	return c
}

func (c *Immediate) Send(cmds []*Command) (answered bool, err error) {
	c.Do(cmds)
	return true, nil
}

func (c *Immediate) Wait() error {
	<-c.closed
	return ErrBroken
}

// Receive is never called, because Send has answered all commands.
func (c *Immediate) Receive([]*Command) error { return nil }

// Capabilities allow for as many sends as callers want.
func (c *Immediate) Capabilities() ConnCapabilities {
	return ConnCapabilities{Window: MaxWindow, Prompt: true}
}

func (c *Immediate) Close() { c.end() }
