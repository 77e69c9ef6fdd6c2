package compat

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/internal/tests/redistest"
)

// bound is for what comes at once, or within a TTL, however busy the machine is.
const bound = 20 * time.Second

// version is the program of one version.
type version struct {
	name   string
	binary string
}

// compile builds the worker of the sources in a folder.
func compile(t *testing.T, name, folder string, args ...string) version {
	t.Helper()
	v := version{name, filepath.Join(t.TempDir(), "worker")}
	cmd := exec.Command("go", append(append([]string{"build", "-buildvcs=false", "-o", v.binary}, args...), ".")...)
	cmd.Dir = filepath.Join(folder, "test/compat/worker")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0") // as releases are built
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("go build of the %s version: %v\n%s", name, err, out)
	}
	return v
}

// process is a worker.
type process struct {
	t       *testing.T
	name    string
	version string
	input   io.Writer
	exited  <-chan struct{}
	quit    func() // has it write into its log what it is doing, and exit

	mu      sync.Mutex
	last    int
	pending map[int]chan Answer
}

// start starts a worker of a version. It is killed with the test.
func (v version) start(t *testing.T, name string, masters []string, ttl time.Duration) *process {
	t.Helper()
	p := &process{t: t, name: v.name + "-" + name, version: v.name, pending: make(map[int]chan Answer)}
	config, err := json.Marshal(Settings{Masters: masters, Name: p.name, TTL: ttl})
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(v.binary, string(config))
	if p.input, err = cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	// A pipe of our own: the one of StdoutPipe may be closed before all is read.
	output, stdout, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	log, err := os.Create(filepath.Join(t.TempDir(), p.name))
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stdout, cmd.Stderr = stdout, log
	p.exited, err = redistest.StartProcess(cmd)
	_ = stdout.Close()
	if err != nil {
		t.Fatal(err)
	}
	p.quit = func() {
		_ = cmd.Process.Signal(syscall.SIGQUIT)
		<-p.exited
	}
	read := make(chan struct{})
	go func() {
		defer close(read)
		p.read(output)
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-p.exited
		<-read
		_ = output.Close()
		_ = log.Close()
		if text, err := os.ReadFile(log.Name()); t.Failed() && err == nil {
			t.Logf("log of %s:\n%s", p.name, text)
		}
	})
	return p
}

func (p *process) read(output io.Reader) {
	for answers := json.NewDecoder(output); ; {
		var a Answer
		if err := answers.Decode(&a); err != nil {
			return
		}
		p.mu.Lock()
		p.pending[a.ID] <- a
		delete(p.pending, a.ID)
		p.mu.Unlock()
	}
}

// ask sends a request, whose ID it returns with the place where the answer comes.
func (p *process) ask(r Request) (id int, answer <-chan Answer) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.last++
	r.ID = p.last
	line, err := json.Marshal(r)
	if err != nil {
		panic(err)
	}
	here := make(chan Answer, 1)
	p.pending[r.ID] = here
	_, _ = p.input.Write(append(line, '\n')) // if the process has ended, no answer comes
	return r.ID, here
}

// wait waits for an answer. The error says that there was none, or what it says.
func (p *process) wait(what string, answer <-chan Answer) (Answer, error) {
	select {
	case a := <-answer:
		if a.Error != "" {
			return a, fmt.Errorf("%s: %s: %s", p.name, what, a.Error)
		}
		return a, nil
	case <-p.exited:
		return Answer{}, fmt.Errorf("%s: %s: the process has ended", p.name, what)
	case <-time.After(bound):
		p.quit()
		return Answer{}, fmt.Errorf("%s: %s: no answer within %v", p.name, what, bound)
	}
}

// call sends a request and waits for its answer.
func (p *process) call(r Request) (Answer, error) {
	_, answer := p.ask(r)
	return p.wait(r.Do, answer)
}

// answered calls until a quorum of the masters answers in time, which on a busy machine it may not.
func (p *process) answered(r Request) (a Answer, err error) {
	for deadline := time.Now().Add(bound); ; {
		if a, err = p.call(r); !a.NoQuorum || time.Now().After(deadline) {
			return a, err
		}
	}
}

// held is a lock that a process has.
type held struct {
	*process
	id    int
	fence uint64
}

func (p *process) lock(key string) (held, error) {
	id, answer := p.ask(Request{Do: "lock", Key: key})
	a, err := p.wait("lock", answer)
	return held{p, id, a.Fence}, err
}

func (h held) unlock() error {
	a, err := h.call(Request{Do: "unlock", Lock: h.id})
	if a.NoQuorum { // the masters free it all the same
		return nil
	}
	return err
}
