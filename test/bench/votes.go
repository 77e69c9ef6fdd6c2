package main

import (
	"crypto/rand"
	"crypto/sha1"
	"encoding/hex"
	"errors"
	"sync"
	"sync/atomic"
)

// What the floors share: the classic commands, and the count of the votes.

const releaseScript = `if redis.call("GET",KEYS[1])==ARGV[1] then return redis.call("DEL",KEYS[1]) else return 0 end`

var (
	releaseSHA = func() string {
		sum := sha1.Sum([]byte(releaseScript))
		return hex.EncodeToString(sum[:])
	}()
	errHeld   = errors.New("held")
	errNotOur = errors.New("not released by a quorum")
)

func newToken() string { return rand.Text() }

// ballot counts the votes of one round, and tells as soon as the quorum is certain or out of reach.
type ballot struct {
	n       int32
	yes, no atomic.Int32
	refs    atomic.Int32 // the masters that have yet to vote, and the caller
	result  chan bool
}

var ballots = sync.Pool{New: func() any { return &ballot{result: make(chan bool, 1)} }}

func newBallot(n int) *ballot {
	b := ballots.Get().(*ballot)
	b.n = int32(n)
	b.yes.Store(0)
	b.no.Store(0)
	b.refs.Store(int32(n) + 1)
	return b
}

func (b *ballot) vote(yes bool) {
	quorum := b.n/2 + 1
	if yes {
		if b.yes.Add(1) == quorum {
			b.result <- true
		}
	} else if b.no.Add(1) == b.n-quorum+1 {
		b.result <- false
	}
	b.drop()
}

func (b *ballot) wait() bool {
	won := <-b.result
	b.drop()
	return won
}

func (b *ballot) drop() {
	if b.refs.Add(-1) == 0 {
		ballots.Put(b)
	}
}
