package agent_test

import (
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-redlock/caddy-redlock/agent"
	"github.com/caddy-redlock/caddy-redlock/redlock"
	"github.com/caddy-redlock/caddy-redlock/redlock/inspect"
	"github.com/caddy-redlock/caddy-redlock/redlock/simnet"
)

var update = flag.Bool("update", false, "write into docs/protocol.md what the agent answers")

const protocolPage = "../docs/protocol.md"

var transcripts = regexp.MustCompile("(?s)```http\n(.*?)```\n")

// TestProtocol: an agent answers as the transcripts of docs/protocol.md say. Numbers that chance changes a little may differ: fences, slots,
// Retry-After, and a few milliseconds.
func TestProtocol(t *testing.T) {
	page, err := os.ReadFile(protocolPage)
	if err != nil {
		t.Fatal(err)
	}
	for _, limit := range []string{fmt.Sprintf("of at most %d bytes", redlock.MaxKeyLength), fmt.Sprintf("at most %d different keys", redlock.MaxKeys), fmt.Sprintf("from 1 to %d", redlock.MaxConcurrency)} {
		if !strings.Contains(string(page), limit) {
			t.Errorf("docs/protocol.md doesn't say %q", limit)
		}
	}
	var mu sync.Mutex
	answers := make(map[string]string)
	blocks := transcripts.FindAllStringSubmatch(string(page), -1)
	if len(blocks) == 0 {
		t.Fatal("docs/protocol.md has no transcripts")
	}
	first := blocks[0][1]
	request, response := headOf(first, ">"), headOf(first, "<")
	t.Run("transcripts", func(t *testing.T) {
		for i, block := range blocks {
			shown := strings.NewReplacer("> …\n", request, "< …\n", response).Replace(block[1])
			t.Run(strconv.Itoa(i+1), func(t *testing.T) {
				simnet.Run(t, 3, func(t *testing.T, net *simnet.Net) {
					got := (&transcript{t: t, net: net}).replay(shown)
					mu.Lock()
					defer mu.Unlock()
					answers[block[1]] = got
					if !*update && !sameTranscript(got, shown) {
						t.Errorf("docs/protocol.md shows\n%s\nand the agent's transcript is (go test -run TestProtocol -update writes it)\n%s", shown, got)
					}
				})
			})
		}
	})
	if *update {
		text := transcripts.ReplaceAllStringFunc(string(page), func(block string) string {
			shown := transcripts.FindStringSubmatch(block)[1]
			got := answers[shown]
			if shown != first {
				got = strings.NewReplacer(request, "> …\n", response, "< …\n").Replace(got)
			}
			if sameTranscript(got, shown) {
				return block
			}
			return "```http\n" + got + "```\n"
		})
		if err := os.WriteFile(protocolPage, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// headOf returns the head of the request or response in a transcript.
func headOf(transcript, side string) string {
	head, _, _ := strings.Cut(transcript[strings.Index(transcript, side+" "):], "\n"+side+"\n")
	return head + "\n" + side + "\n"
}

var (
	chance = regexp.MustCompile(`"fence":\d+|"slot":\d|Retry-After: \d+`)
	valid  = regexp.MustCompile(`"valid_ms":(\d+)`)
)

func sameTranscript(a, b string) bool {
	times := [2][]string{valid.FindAllString(a, -1), valid.FindAllString(b, -1)}
	for i := range min(len(times[0]), len(times[1])) {
		x, _ := strconv.Atoi(times[0][i][len(`"valid_ms":`):])
		y, _ := strconv.Atoi(times[1][i][len(`"valid_ms":`):])
		if max(x-y, y-x) > 5 {
			return false
		}
	}
	plain := func(text string) string {
		return valid.ReplaceAllString(chance.ReplaceAllString(text, "N"), "N")
	}
	return plain(a) == plain(b)
}

// transcript replays what a client sends and what happens meanwhile.
type transcript struct {
	t      *testing.T
	net    *simnet.Net
	locker *redlock.Locker
	pipes  *pipes
	c      net.Conn

	mu     sync.Mutex
	said   []byte // by the agent, and not shown yet
	closed bool
}

// replay returns the block with what the agent answers now.
func (r *transcript) replay(shown string) string {
	r.locker = r.net.Locker(r.t)
	var out strings.Builder
	lines := strings.Split(strings.TrimSuffix(shown, "\n"), "\n")
	for i := 0; i < len(lines); {
		switch line := lines[i]; {
		case strings.HasPrefix(line, "# ") && line != connectionEnds:
			out.WriteString(line + "\n")
			r.happens(strings.TrimPrefix(line, "# "))
			i++
		case strings.HasPrefix(line, ">"):
			r.connect()
			var request strings.Builder
			for ; i < len(lines) && strings.HasPrefix(lines[i], ">"); i++ {
				out.WriteString(lines[i] + "\n")
				request.WriteString(strings.ReplaceAll(strings.TrimPrefix(strings.TrimPrefix(lines[i], ">"), " "), `\n`, "\n") + "\r\n")
			}
			if _, err := io.WriteString(r.c, request.String()); err != nil {
				r.t.Error(err)
			}
		default: // of the agent
			i++
			continue
		}
		if r.c != nil {
			r.answer(&out)
		}
	}
	return out.String()
}

const connectionEnds = "# The agent closes the connection."

// answer adds what the agent has said.
func (r *transcript) answer(out *strings.Builder) {
	time.Sleep(5 * time.Millisecond)
	synctest.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	text := strings.ReplaceAll(strings.ReplaceAll(string(r.said), "\r\n", "\r"), "\n", `\n`)
	for line := range strings.SplitAfterSeq(text, "\r") {
		if line != "" && !strings.HasPrefix(line, "Date: ") {
			out.WriteString(strings.TrimSuffix("< "+strings.TrimSuffix(line, "\r"), " ") + "\n")
		}
	}
	r.said = nil
	if r.closed {
		r.closed = false
		out.WriteString(connectionEnds + "\n")
	}
}

func (r *transcript) connect() {
	if r.c != nil {
		return
	}
	r.pipes = newPipes()
	serveOn(r.t, agent.New(r.locker), r.pipes)
	here, there := net.Pipe()
	r.c = here
	r.pipes.come <- there
	var reading sync.WaitGroup
	reading.Go(func() {
		part := make([]byte, 4096)
		for {
			n, err := here.Read(part)
			r.mu.Lock()
			r.said = append(r.said, part[:n]...)
			r.closed = r.closed || err == io.EOF
			r.mu.Unlock()
			if err != nil {
				return
			}
		}
	})
	r.t.Cleanup(func() { _ = here.Close(); reading.Wait() })
}

var (
	passes = regexp.MustCompile(`^([\d.]+m?s) later\.$`)
	taken  = regexp.MustCompile(`^Another client has (\S+) for (\S+)\.$`)
)

// happens has something happen beside the client.
func (r *transcript) happens(what string) {
	if m := passes.FindStringSubmatch(what); m != nil {
		r.sleep(m[1])
		return
	}
	if m := taken.FindStringSubmatch(what); m != nil {
		lock, err := r.locker.TryLock(r.t.Context(), m[1])
		if err != nil {
			r.t.Fatal(err)
		}
		d, err := time.ParseDuration(m[2])
		if err != nil {
			r.t.Fatal(err)
		}
		time.AfterFunc(d, func() { _ = lock.Unlock() })
		r.t.Cleanup(func() { _ = lock.Unlock() })
		return
	}
	if what != "An operator releases the lock." {
		r.t.Fatalf("nobody knows how this happens: %s", what)
	}
	for _, k := range inspect.Keys(r.locker, "") {
		if err := inspect.Force(r.t.Context(), r.locker, k.Key, 0, k.Fence); err != nil {
			r.t.Error(err)
		}
	}
}

func (r *transcript) sleep(text string) {
	d, err := time.ParseDuration(text)
	if err != nil {
		r.t.Fatal(err)
	}
	time.Sleep(d - 5*time.Millisecond) // answer takes the rest
}
