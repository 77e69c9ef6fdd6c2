package inside

import "time"

// Examination has the facts about a master's server for package doctor to judge. Unknown facts are zero.
type Examination struct {
	Unexaminable bool // the master is in the memory of the process

	// The server's description of itself when a connection to it is made.
	RunID         string
	Version, Mode string
	TooOld        bool          // the server's version of Redis lacks commands that the scripts need
	Uptime        time.Duration // by the server's wall clock, in whole seconds, up to a second too long
	HasUptime     bool
	Role          string // "master" or "slave", in Redis's words
	Memory        struct {
		Used   int64  // bytes
		Max    int64  // bytes; 0 without a limit
		Policy string // maxmemory-policy: the server's rule for a full memory
	}
	CertificateUntil time.Time // the time until which the server's certificate is valid; zero without TLS

	Info   map[string]string
	Config map[string]string // settings that INFO doesn't have; empty if the user has no right to CONFIG

	Name    string
	Cluster bool           // the server was examined as a node of a Redis Cluster
	Others  []*Examination // the other nodes with keys; this Examination is of the node with the longest round trip

	User    string // the configured user
	Addr    string // the configured address
	Reached string // the address of the connection, or "unix"; empty if there was no connection

	Err         error    // the reason why the server can't be examined, or not completely
	Refused     *Refusal // Err in the server's own words; nil if Err is of another kind
	Closed      bool     // Err says that the server, or a proxy before it, has closed the connection
	SpeaksTLS   bool     // the server has closed a connection without TLS, but accepts TLS
	SpeaksPlain bool     // the server doesn't answer over TLS, but answers without TLS
	// WhyTLS says why TLS fails or is needed, and AdviceTLS what an operator can do, as a Locker's errors say it. Both are empty if TLS works.
	WhyTLS, AdviceTLS string

	RoundTrip time.Duration // the median of several round trips
	HasClock  bool
	Offset    time.Duration // how far the server's clock is ahead of ours
	Accuracy  time.Duration // how exact the offset is

	Refusals  []Refusal
	NotTried  []string          // commands that weren't tried because they would have left a key behind
	OtherRun  string            // the run ID on a second connection, if it differs from the first
	Processes map[string]string // the beats of the processes that use this server, by the processes' IDs: see beat.lua
	LostAgo   time.Duration     // how long ago the server lost its data, as a process has told it; 0 if none has
}

// Refusal is the server's refusal of a command that locks need.
type Refusal struct {
	Command, Text string
	// Why says why the server takes no locks, and Advice what an operator can do, as a Locker's errors say it. Both are empty for an unknown text.
	Why, Advice string
}
