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

	"github.com/caddy-redlock/caddy-redlock/internal/redistest"
)

// process is a worker's process, as the test sees it.
type process struct {
	t       *testing.T
	name    string
	polls   bool // because it may not subscribe
	cmd     *exec.Cmd
	input   *os.File
	log     string // a file
	witness *witness
	start   time.Time
	exited  <-chan struct{}
	read    chan struct{} // closed when all of its reports have been read

	mu      sync.Mutex
	samples []sample
	counts  map[string]int
	wrong   []string
	turns   int
	lived   time.Duration
}

func startProcess(t *testing.T, name, log string, w *witness, config *worker) *process {
	t.Helper()
	text, err := json.Marshal(config)
	check(err)
	stdin, input, err := os.Pipe()
	check(err)
	reports, theirs, err := os.Pipe()
	check(err)
	stderr, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	check(err)
	p := &process{t: t, name: name, input: input, log: log, witness: w, start: time.Now(), read: make(chan struct{})}
	p.cmd = exec.Command(os.Args[0])
	p.cmd.Env = append(os.Environ(), workerEnv+"="+string(text))
	p.cmd.Stdin, p.cmd.Stderr, p.cmd.ExtraFiles = stdin, stderr, []*os.File{theirs}
	p.exited, err = redistest.StartProcess(p.cmd)
	_, _, _ = stdin.Close(), theirs.Close(), stderr.Close()
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
			p.witness.record(p.name, r.Hold)
		}
		p.mu.Lock()
		switch {
		case errors.Is(err, io.EOF):
		case err != nil:
			p.wrong = append(p.wrong, fmt.Sprintf("unreadable report: %v", err))
		case r.Hold != nil && r.Hold.Ended != "":
			p.turns++
		case r.Hold != nil:
		case r.Sample != nil:
			p.samples = append(p.samples, *r.Sample)
		case r.Counts != nil:
			p.counts = r.Counts
		default:
			p.wrong = append(p.wrong, r.Wrong)
		}
		p.lived = time.Since(p.start)
		p.mu.Unlock()
		if err != nil {
			p.witness.died(p.name)
			return
		}
	}
}

// awaitTurn waits until the process has had one more lock.
func (p *process) awaitTurn() {
	p.t.Helper()
	have := func() int {
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.turns
	}
	before := have()
	for deadline := time.Now().Add(bound); have() == before; time.Sleep(10 * time.Millisecond) {
		select {
		case <-p.exited:
			p.t.Fatalf("%s has ended by itself: %s", p.name, p.tail())
		default:
		}
		if time.Now().After(deadline) {
			p.t.Fatalf("%s gets no lock in %v: %s", p.name, bound, p.tail())
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
	if state := p.cmd.ProcessState; !state.Success() {
		p.t.Errorf("%s: %v: %s", p.name, state, p.tail())
	}
}

// tail returns the end of the process's log.
func (p *process) tail() string {
	text, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	lines := strings.SplitAfter(string(text), "\n")
	return p.log + ":\n" + strings.Join(lines[max(0, len(lines)-30):], "")
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
