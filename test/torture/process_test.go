package torture

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/internal/tests/redistest"
	"github.com/caddy-redlock/caddy-redlock/test/witness"
)

// process is a worker's process, as the test sees it.
type process struct {
	t       *testing.T
	name    string
	cmd     *exec.Cmd
	input   *os.File
	log     *pipedLog
	witness *witness.Witness
	exited  <-chan struct{}
	read    chan struct{} // closed when all of its reports have been read

	mu                        sync.Mutex
	samples                   []sample
	counts                    map[string]int
	wrong                     []string
	turns, renewals, refusals int // its holds, those of them for longer than the TTL, and its clients that have been refused
}

func startProcess(t *testing.T, name, log string, w *witness.Witness, config *worker) *process {
	t.Helper()
	text, err := json.Marshal(config)
	check(err)
	stdin, input, err := os.Pipe()
	check(err)
	reports, theirs, err := os.Pipe()
	check(err)
	p := &process{t: t, name: name, input: input, log: newPipedLog(log), witness: w, read: make(chan struct{})}
	p.cmd = exec.Command(os.Args[0])
	p.cmd.Env = append(os.Environ(), workerEnv+"="+string(text))
	p.cmd.Stdin, p.cmd.Stderr, p.cmd.ExtraFiles = stdin, p.log.theirs, []*os.File{theirs}
	p.exited, err = redistest.StartProcess(p.cmd)
	_, _ = stdin.Close(), theirs.Close()
	if err != nil {
		t.Fatal(err)
	}
	go p.readReports(reports)
	t.Cleanup(p.kill)
	return p
}

func (p *process) readReports(reports *os.File) {
	defer close(p.read)
	defer func() { _ = reports.Close() }()
	for in := json.NewDecoder(reports); ; {
		var r report
		err := in.Decode(&r)
		if r.Hold != nil {
			p.witness.Record(p.name, *r.Hold)
		}
		p.mu.Lock()
		switch {
		case errors.Is(err, io.EOF):
		case err != nil:
			p.wrong = append(p.wrong, fmt.Sprintf("unreadable report: %v", err))
		case r.Hold != nil && r.Hold.Ended != "":
			p.turns++
			if r.Hold.Ended == "unlocked" && r.Hold.To-r.Hold.From > int64(ttl) {
				p.renewals++
			}
		case r.Hold != nil:
		case r.Refused:
			p.refusals++
		case r.Sample != nil:
			p.samples = append(p.samples, *r.Sample)
		case r.Counts != nil:
			p.counts = r.Counts
		default:
			p.wrong = append(p.wrong, r.Wrong)
		}
		p.mu.Unlock()
		if err != nil {
			p.witness.Died(p.name)
			return
		}
	}
}

// awaitTurn waits until the process has had one more lock.
func (p *process) awaitTurn() {
	p.t.Helper()
	p.await(&p.turns, p.count(&p.turns), "gets no lock")
}

// awaitRenewal waits until the process has kept one more lock for longer than its TTL.
func (p *process) awaitRenewal() {
	p.t.Helper()
	p.await(&p.renewals, p.count(&p.renewals), "keeps no lock for longer than its TTL")
}

// awaitRefusal waits until a client of the process has been told that others have other masters.
func (p *process) awaitRefusal() {
	p.t.Helper()
	p.await(&p.refusals, 0, "with other masters is not refused")
}

func (p *process) count(of *int) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return *of
}

// await waits until a count of the process has grown.
func (p *process) await(of *int, before int, otherwise string) {
	p.t.Helper()
	for deadline := time.Now().Add(bound); p.count(of) == before; time.Sleep(10 * time.Millisecond) {
		select {
		case <-p.exited:
			p.t.Fatalf("%s has ended by itself: %s", p.name, p.tail())
		default:
		}
		if time.Now().After(deadline) {
			p.t.Fatalf("%s %s in %v: %s", p.name, otherwise, bound, p.tail())
		}
	}
}

func (p *process) signal(sig os.Signal) {
	if err := p.cmd.Process.Signal(sig); err != nil {
		p.t.Errorf("signal to %s: %v", p.name, err)
	}
}

// kill kills the process by SIGKILL, unless it has ended.
func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	<-p.exited
	<-p.read
	_ = p.input.Close()
	p.log.close()
}

// end lets the process end by itself: "close" closes its Locker while the clients use it.
func (p *process) end(how string) {
	p.t.Helper()
	_, _ = io.WriteString(p.input, how+"\n")
	select {
	case <-p.exited:
	case <-time.After(bound):
		p.t.Errorf("%s has not ended %v after the command %s: %s", p.name, bound, how, p.tail())
		p.kill()
	}
	<-p.read
	_ = p.input.Close()
	p.log.close()
	if state := p.cmd.ProcessState; !state.Success() {
		p.t.Errorf("%s: %v: %s", p.name, state, p.tail())
	}
}

// tail returns the end of the process's log.
func (p *process) tail() string {
	text, err := os.ReadFile(p.log.file)
	if err != nil {
		return err.Error()
	}
	lines := strings.SplitAfter(string(text), "\n")
	return p.log.file + ":\n" + strings.Join(lines[max(0, len(lines)-30):], "")
}

// complaints returns what the process itself has reported as wrong.
func (p *process) complaints() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	var found []string
	for _, text := range p.wrong {
		found = append(found, p.name+": "+text)
	}
	return found
}
