package compat

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/internal/tests/redistest"
)

// judge knows who has which lock: from the answer that grants it until the request that frees it.
type judge struct {
	mu      sync.Mutex
	holders map[string]*process
	fences  map[string]uint64
	last    map[string]string // version of the last holder
	passed  map[string]int    // how often a key has passed from one version to the other
	err     error
}

func (j *judge) begin(key string, h held) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if other := j.holders[key]; other != nil {
		j.err = errors.Join(j.err, fmt.Errorf("%s and %s have the same lock", other.name, h.name))
	}
	if h.fence <= j.fences[key] {
		j.err = errors.Join(j.err, fmt.Errorf("%s has the fencing token %d, and %s had %d before", h.name, h.fence, j.last[key], j.fences[key]))
	}
	if last := j.last[key]; last != "" {
		j.passed[last+" to "+h.version]++
	}
	j.holders[key], j.fences[key], j.last[key] = h.process, h.fence, h.version
}

func (j *judge) end(key string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	delete(j.holders, key)
}

func (j *judge) failed() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.err
}

// oneHolder lets two processes of each version contend for a few locks.
func oneHolder(t *testing.T, a, b version) error {
	const keys, clients, turns = 5, 6, 25 // clients of each process, turns of each client
	masters := redistest.URLs(redistest.Start(t, 3))
	j := &judge{holders: make(map[string]*process), fences: make(map[string]uint64), last: make(map[string]string), passed: make(map[string]int)}
	var all sync.WaitGroup
	failures := make(chan error, 4*clients)
	for i, v := range []version{a, b, a, b} {
		p := v.start(t, fmt.Sprint(i), masters, longTTL)
		for range clients {
			all.Go(func() {
				for range turns {
					key := fmt.Sprint("key", rand.N(keys))
					h, err := p.lock(key)
					if err != nil {
						failures <- err
						return
					}
					j.begin(key, h)
					time.Sleep(rand.N(time.Millisecond))
					j.end(key)
					if err := h.unlock(); err != nil {
						failures <- err
						return
					}
					if j.failed() != nil {
						return
					}
				}
			})
		}
	}
	all.Wait()
	close(failures)
	err := j.failed()
	for failure := range failures {
		err = errors.Join(err, failure)
	}
	if err == nil && (j.passed[a.name+" to "+b.name] == 0 || j.passed[b.name+" to "+a.name] == 0) {
		err = fmt.Errorf("locks have passed only %v", j.passed)
	}
	return err
}
