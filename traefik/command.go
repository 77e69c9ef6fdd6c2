package traefik

import "time"

// The kinds of commands.
const (
	opPing = iota
	opAcquire
	opExtend
	opRelease
	opRegister
)

// command is a command for one master.
type command struct {
	op    int
	words int    // the number of words after EVAL and the script
	body  string // these words, as they are sent
	plain string // release: an LREM, which is enough if nobody waits; or ""

	a      *attempt // nil for pings and registrations
	vote   *vote
	phase  int       // the phase of the attempt that counts the answer
	round  int       // extend: the round of the lock's renewals
	until  time.Time // release: repeated until then, once it was sent; extend: until when the master may take the key anew
	due    time.Time // release: when it is sent again
	sentAt time.Time

	set   string // register: the set
	inUse bool
}

// vote is what a master has answered to an attempt, and what it may have of it. The locker's mu guards it.
type vote struct {
	mayHold  bool      // it may have the key, by the acquire
	unsure   bool      // the connection broke during the acquire, which may still arrive: only a deleted key proves a release
	extended bool      // it may have the key, by an extend
	mayTake  time.Time // until when an extend whose connection broke may still take the key
	ticket   bool      // it may have the call's ticket
	granted  bool      // the vote was granted, and counted
	alone    bool      // nobody waited when it was granted
	fence    int64
}

// needless reports whether a command need not be sent.
func needless(c *command, now time.Time) bool {
	switch c.op {
	case opAcquire, opExtend:
		return c.a.over
	case opRelease:
		return !c.vote.mayHold && !c.vote.extended && !c.vote.ticket || !c.until.IsZero() && !now.Before(lasts(c))
	}
	return false
}

// lasts returns until when a release must be repeated.
func lasts(c *command) time.Time {
	until := c.vote.mayTake.Add(4 * owedGap)
	if c.until.After(until) {
		return c.until
	}
	return until
}

// sending records what the master may have once the command is sent.
func sending(c *command, now time.Time) {
	c.sentAt = now
	switch c.op {
	case opAcquire:
		c.vote.mayHold = true
		c.vote.ticket = c.vote.ticket || c.a.queued
	case opExtend:
		c.vote.extended = true
	case opRelease: // until now the acquire before it may have been under way, to a master that hung
		if c.until.IsZero() {
			c.until = now.Add(c.a.ttl)
		}
	}
}

// acknowledged reports whether a release that was answered need not be repeated; released means that it deleted the key. An extend
// that the server has not read yet may take the key anew until mayTake, so only a release sent after that is certain.
func acknowledged(c *command, released bool) bool {
	return c.sentAt.After(c.vote.mayTake) && (!c.vote.unsure || released)
}

// keysOf returns the words of a script's command that name its keys.
func keysOf(key string) string {
	return bulks("4", key, key+":fence", key+":queue", key+":leases")
}

// scriptOf returns what is sent for a command; known means that the server has the script.
func scriptOf(c *command, known bool) string {
	hash, source := acquireHash, acquireScript
	switch c.op {
	case opExtend:
		hash, source = extendHash, extendScript
	case opRelease:
		hash, source = releaseHash, releaseScript
	case opRegister:
		hash, source = registerHash, registerScript
	}
	if known {
		return plainHeads[c.words] + "$7\r\nEVALSHA\r\n$40\r\n" + hash + "\r\n" + c.body
	}
	return plainHeads[c.words] + bulks("EVAL", source) + c.body
}

// plainHeads has the beginnings of commands, by the number of words after EVAL and the script.
var plainHeads = map[int]string{10: "*12\r\n", 11: "*13\r\n", 12: "*14\r\n"}
