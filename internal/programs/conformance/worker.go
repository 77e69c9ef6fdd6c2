package conformance

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Command calls a worker.
type Command struct {
	Args []string
	Dir  string
	Env  []string // beside that of this process
}

// Worker is a program that runs a client.
type Worker struct {
	Cmd    *exec.Cmd
	Stderr bytes.Buffer

	cancel  context.CancelFunc
	out     *os.File
	lines   *bufio.Scanner
	printed []string
	ended   bool // it prints nothing more
	stop    string
}

// workers are the variables that redlock conformance --help gives a meaning. Those of the user's own environment, such as a TTL, mean something else.
var workers = []string{"ADDRESS", "TOKEN", "WAIT", "TTL", "MAX_HOLD", "PATIENCE", "CONCURRENCY", "VALUES", "STOP", "SLOWLY"}

// Start starts a worker, with variables of its environment and with arguments. Nobody else may use the folder. The worker, and what it has
// started, ends with ctx.
func (c *Command) Start(ctx context.Context, dir string, options []string, args ...string) (*Worker, error) {
	w := &Worker{stop: filepath.Join(dir, "stop")}
	_ = os.Remove(w.stop) // of the worker before
	out, theirs, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer func() { _ = theirs.Close() }()
	w.out, w.lines = out, bufio.NewScanner(out)
	ctx, w.cancel = context.WithCancel(ctx)
	w.Cmd = exec.CommandContext(ctx, c.Args[0], append(c.Args[1:len(c.Args):len(c.Args)], args...)...)
	inGroup(w.Cmd)
	w.Cmd.WaitDelay = 10 * time.Second // for children that outlive it
	w.Cmd.Dir, w.Cmd.Stdout, w.Cmd.Stderr = c.Dir, theirs, &w.Stderr
	inherited := slices.DeleteFunc(os.Environ(), func(variable string) bool {
		name, _, _ := strings.Cut(variable, "=")
		return slices.Contains(workers, name)
	})
	w.Cmd.Env = append(append(append(inherited, "STOP="+w.stop), c.Env...), options...)
	if err := w.Cmd.Start(); err != nil {
		w.cancel()
		_ = out.Close()
		return nil, err
	}
	context.AfterFunc(ctx, func() { _ = out.Close() }) // a child may keep the other side
	return w, nil
}

// Line returns the next line that the worker prints, or false when it prints nothing more.
func (w *Worker) Line() (string, bool) {
	if !w.lines.Scan() {
		w.ended = true
		return "", false
	}
	w.printed = append(w.printed, w.lines.Text())
	return w.lines.Text(), true
}

// Stop tells a worker that holds a lock to end its work.
func (w *Worker) Stop() error { return os.WriteFile(w.stop, nil, 0o600) }

// End waits for the end of a worker that prints nothing more, and ends any other. It returns how the worker has failed.
func (w *Worker) End() error {
	if !w.ended {
		w.cancel()
	}
	defer w.cancel()
	defer endGroup(w.Cmd)
	return w.Cmd.Wait()
}

// String is what the worker has printed.
func (w *Worker) String() string {
	var text strings.Builder
	for _, line := range w.printed {
		fmt.Fprintln(&text, "printed:", line)
	}
	for line := range strings.Lines(w.Stderr.String()) {
		fmt.Fprintln(&text, "standard error:", strings.TrimSuffix(line, "\n"))
	}
	return text.String()
}
