package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime/pprof"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// process is a child that has one contestant. Each has its own, so that its CPU time and allocations
// are its own, and its background work is in nobody else's figures.
type process struct {
	cmd   *exec.Cmd
	stdin io.WriteCloser
	in    *json.Encoder
	out   *json.Decoder
}

func startProcess(name string, addrs []string, more ...string) (*process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(self, append([]string{"-child", name, "-masters", strings.Join(addrs, ",")}, more...)...)
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	return &process{cmd, stdin, json.NewEncoder(stdin), json.NewDecoder(stdout)}, cmd.Start()
}

func (p *process) put(s slice) (outcome, error) {
	var o outcome
	if err := p.in.Encode(s); err != nil {
		return o, err
	}
	return o, p.out.Decode(&o)
}

// stop lets the child close its contestant, and kills it where that takes long.
func (p *process) stop() error {
	_ = p.stdin.Close() // the child sees the end of its work
	kill := time.AfterFunc(15*time.Second, func() { _ = p.cmd.Process.Kill() })
	defer kill.Stop()
	return p.cmd.Wait()
}

// runChild is the whole life of a child: slices come in, outcomes go out.
func runChild(name, masters, profile string) error {
	contestant, err := kindOf(name).open(strings.Split(masters, ","))
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	redis.SetLogger(quiet{}) // go-redis tells of each dial that fails
	if profile != "" {
		f, err := os.Create(fmt.Sprintf("%s.%d", profile, os.Getpid()))
		if err != nil {
			return err
		}
		if err := pprof.StartCPUProfile(f); err != nil {
			return err
		}
		defer pprof.StopCPUProfile()
	}
	in, out := json.NewDecoder(os.Stdin), json.NewEncoder(os.Stdout)
	for {
		var s slice
		if err := in.Decode(&s); errors.Is(err, io.EOF) {
			return contestant.Close()
		} else if err != nil {
			return err
		}
		if err := out.Encode(s.put(contestant)); err != nil {
			return err
		}
	}
}

type quiet struct{}

func (quiet) Printf(context.Context, string, ...any) {}
