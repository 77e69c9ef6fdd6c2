package redlock_test

import (
	"encoding/json"
	"errors"
	"io"
	"maps"
	"os"
	"os/exec"
	"slices"
	"sync"
	"testing"
)

// workerProcess is a worker, seen from the test.
type workerProcess struct {
	t      *testing.T
	cmd    *exec.Cmd
	input  *os.File
	closed chan struct{} // when all of its records have been read
	killed bool

	mu       sync.Mutex
	turns    []historyTurn       // those that have ended
	ended    tally               // of them
	underWay map[int]historyTurn // the last record of each of the others, by number
}

// startWorkerProcess starts a worker. It is killed with the test at the latest.
func startWorkerProcess(t *testing.T, config *historyWorker) *workerProcess {
	t.Helper()
	text, err := json.Marshal(config)
	if err != nil {
		t.Fatal(err)
	}
	stdin, input, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	records, ours, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	p := &workerProcess{t: t, input: input, closed: make(chan struct{}), underWay: make(map[int]historyTurn)}
	p.cmd = exec.Command(os.Args[0], "-test.run=^TestHelperHistoryWorker$", "-test.timeout=10m")
	p.cmd.Env = append(os.Environ(), historyWorkerEnv+"="+string(text))
	p.cmd.Stdin, p.cmd.Stderr, p.cmd.ExtraFiles = stdin, os.Stderr, []*os.File{ours}
	err = p.cmd.Start()
	_ = stdin.Close()
	_ = ours.Close()
	if err != nil {
		t.Fatal(err)
	}
	go p.read(records)
	t.Cleanup(p.kill)
	return p
}

func (p *workerProcess) read(records *os.File) {
	defer close(p.closed)
	defer func() { _ = records.Close() }()
	for in := json.NewDecoder(records); ; {
		var turn historyTurn
		if err := in.Decode(&turn); err != nil {
			if !errors.Is(err, io.EOF) {
				p.t.Errorf("a worker's record: %v", err)
			}
			return
		}
		p.note(turn)
	}
}

// note takes a record. Looks at a run must stay cheap while thousands of turns come in: a test that falls behind its workers
// finds no holder that still holds.
func (p *workerProcess) note(turn historyTurn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if turn.UnlockReturn == 0 {
		p.underWay[turn.Number] = turn
		return
	}
	delete(p.underWay, turn.Number)
	p.turns = append(p.turns, turn)
	p.ended.acquiresAndReleases += 2
	if turn.Renewed {
		p.ended.renewed++
	}
	if turn.Lost {
		p.ended.lost++
	}
}

func (p *workerProcess) recorded() []historyTurn {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.AppendSeq(slices.Clone(p.turns), maps.Values(p.underWay))
}

// awaitHolder waits until the worker holds a lock that it means to hold for long.
func (p *workerProcess) awaitHolder() {
	p.t.Helper()
	p.await("a worker holds a lock for long", func() bool {
		for _, turn := range p.underWay {
			if turn.UnlockCall == 0 && turn.Hold >= longHold && monotonic() < turn.Return+int64(turn.Hold) {
				return true
			}
		}
		return false
	})
}

// await waits until the condition, which may look at the worker's turns, holds.
func (p *workerProcess) await(what string, condition func() bool) {
	p.t.Helper()
	eventually(p.t, historyBound, what, func() bool {
		select {
		case <-p.closed:
			p.t.Fatal("a worker has ended by itself")
		default:
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		return condition()
	})
}

func (p *workerProcess) signal(sig os.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(sig); err != nil {
		p.t.Errorf("signal to a worker: %v", err)
	}
}

// kill ends the process with kill -9, unless it has ended, and reads its last records.
func (p *workerProcess) kill() {
	p.killed = p.cmd.Process.Kill() == nil || p.killed
	<-p.closed
	_ = p.cmd.Wait()
	_ = p.input.Close()
}
