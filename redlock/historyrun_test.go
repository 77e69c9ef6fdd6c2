package redlock_test

import (
	"fmt"
	"math/rand/v2"
	"syscall"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/caddy-redlock/caddy-redlock/internal/redistest"
)

const (
	historyWorkers = 3
	historyClients = 64 // in all workers together
)

// historyRun is a run of worker processes on real masters.
type historyRun struct {
	t       *testing.T
	start   time.Time
	broken  breakage
	servers []*redistest.Server
	workers [historyWorkers]*workerProcess // at work
	all     []*workerProcess               // and those before them, which were killed
}

// startHistoryRun starts masters and workers, and waits until these get locks.
func startHistoryRun(t *testing.T, masters int, broken breakage) *historyRun {
	t.Helper()
	r := &historyRun{t: t, start: time.Now(), broken: broken, servers: redistest.Start(t, masters)}
	for place := range r.workers {
		r.startWorker(place)
	}
	for _, w := range r.workers { // the masters have no vote before their guard is over
		w.await("a worker gets a lock", func() bool { return len(w.underWay)+len(w.turns) > 0 })
	}
	return r
}

func (r *historyRun) startWorker(place int) {
	clients := historyClients / historyWorkers
	if place < historyClients%historyWorkers {
		clients++
	}
	w := &historyWorker{URLs: redistest.URLs(r.servers), Clients: clients, Broken: r.broken}
	if r.broken == noQuorum {
		w.URLs = w.URLs[place : place+1]
	}
	r.workers[place] = startWorkerProcess(r.t, w)
	r.all = append(r.all, r.workers[place])
}

// strike lets a minority of the masters fail, and a worker that holds a lock, then mends them. It
// returns when all masters vote again. Six rounds have all combinations.
func (r *historyRun) strike(round int) {
	order := rand.Perm(len(r.servers))
	intact, failing := order[:len(order)/2+1], order[len(order)/2+1:]
	var mend []func()
	emptied := false
	for i, m := range failing {
		master := r.servers[m]
		if round%3 == 0 || round%3 == 2 && i%2 == 0 {
			r.log("master %d is killed", m)
			master.Kill()
			mend = append(mend, master.Restart)
			emptied = true
		} else {
			r.log("master %d hangs", m)
			master.Pause()
			mend = append(mend, master.Resume)
		}
	}
	time.Sleep(rand.N(historyTTL))
	if place := rand.N(historyWorkers); round%2 == 0 {
		r.pauseWorker(place)
	} else {
		r.killWorker(place)
	}
	time.Sleep(rand.N(historyTTL))
	for _, f := range mend {
		f()
	}
	r.log("all masters are back")
	if !emptied { // locks that were taken meanwhile are on the others alone, and soon on fewer
		r.empty(intact[0])
	}
	// A master in its guard is as good as down: no other may fail yet.
	time.Sleep(historyGuard + historyTTL/2 + rand.N(historyTTL))
}

// empty has a master forget everything, in no time.
func (r *historyRun) empty(master int) {
	r.log("master %d is killed, and is back", master)
	r.servers[master].Kill()
	r.servers[master].Restart()
}

// pauseHolder stops a worker while it holds a lock.
func (r *historyRun) pauseHolder(place int) (resume func()) {
	r.t.Helper()
	w := r.workers[place]
	w.awaitHolder()
	r.log("worker %d is paused", place)
	w.signal(syscall.SIGSTOP)
	return func() { w.signal(syscall.SIGCONT) }
}

// pauseWorker stops a worker while it holds a lock, until others have had the time to take it.
func (r *historyRun) pauseWorker(place int) {
	r.t.Helper()
	resume := r.pauseHolder(place)
	time.Sleep(2 * historyTTL)
	resume()
}

// killWorker kills a worker while it holds a lock, and starts another in its place.
func (r *historyRun) killWorker(place int) {
	w := r.workers[place]
	w.awaitHolder()
	r.log("worker %d is killed", place)
	w.kill()
	r.startWorker(place)
}

// stop ends the workers, and fails the test if one of them has failed.
func (r *historyRun) stop() {
	for _, w := range r.workers {
		_ = w.input.Close()
	}
	for place, w := range r.workers {
		<-w.closed
		if err := w.cmd.Wait(); err != nil {
			r.t.Errorf("worker %d: %v", place, err)
		}
	}
}

func (r *historyRun) log(format string, args ...any) {
	r.t.Logf("%5.2f s: %s", time.Since(r.start).Seconds(), fmt.Sprintf(format, args...))
}

// tally counts what is in a history.
type tally struct{ acquiresAndReleases, renewed, lost, killed int }

func (r *historyRun) tally() (sum tally) {
	for _, w := range r.all {
		w.mu.Lock()
		sum.acquiresAndReleases += w.ended.acquiresAndReleases
		sum.renewed += w.ended.renewed
		sum.lost += w.ended.lost
		for _, turn := range w.underWay {
			if turn.Renewed {
				sum.renewed++
			}
			if w.killed && turn.UnlockCall == 0 {
				sum.killed++
			}
		}
		w.mu.Unlock()
	}
	return sum
}

// history gives the operations on each key.
func (r *historyRun) history() map[string][]porcupine.Operation {
	history := make(map[string][]porcupine.Operation)
	end, turns := monotonic(), 0
	for i, w := range r.all {
		for _, turn := range w.recorded() {
			turns++
			history[turn.Key] = append(history[turn.Key], turn.operations(turns, i*historyClients+turn.Client, end)...)
		}
	}
	return history
}
