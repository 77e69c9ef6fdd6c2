package conformance

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/caddy-redlock/caddy-redlock/agent"
	"github.com/caddy-redlock/caddy-redlock/internal/programs/rule"
	"github.com/caddy-redlock/caddy-redlock/redlock"
)

// scene is what a worker meets.
type scene struct {
	record

	ctx     context.Context // of the case
	dir     string
	address string
	token   string

	locker  *redlock.Locker // nil: no agent is there
	granted bool            // locks can be had
	waits   func() error    // is called when the worker has begun: ends the wait in which it is to be
	holds   func()          // is called when the worker has printed its first line
	until   time.Time       // by when the worker must not believe in its lock any more; zero: the case says nothing of that

	listener net.Listener
	retire   context.CancelFunc
	served   chan struct{} // closed when the agent has ended
}

// held is the beginning of a response from an agent that follows a script.
const held = "HTTP/1.1 200 OK\r\nRedlock-Agent: 1\r\nContent-Type: application/x-ndjson\r\nTransfer-Encoding: chunked\r\n\r\n"

// ttl is that of an agent's locks, and long enough for a busy machine.
const ttl = 6 * time.Second

// agents are the agents that a case can have its client meet.
var agents = map[string]func(s *scene) error{
	"": func(s *scene) error { return s.begin() },
	"on TCP, with the token secret": func(s *scene) error {
		s.token = "secret"
		return s.begin()
	},
	"with too few masters": func(s *scene) error {
		return s.beginOn([]string{"unix://" + filepath.Join(s.dir, "1"), "unix://" + filepath.Join(s.dir, "2"), "unix://" + filepath.Join(s.dir, "3")})
	},
	"nobody listens": func(s *scene) error {
		s.address = filepath.Join(s.dir, "s")
		return nil
	},
	"a web server": func(s *scene) error { // which lacks the header of an agent
		return s.answer("HTTP/1.1 200 OK\r\nContent-Type: application/x-ndjson\r\nTransfer-Encoding: chunked\r\n\r\n"+chunk(`{"fence":17,"mark":0,"valid_ms":60000}`+"\n"), "")
	},
	"hangs from the start": func(s *scene) error {
		s.freeze()
		return s.begin()
	},
	// The lines of a response and its chunks have nothing to do with each other, names of headers have no case, and later versions say more.
	"behind a proxy": func(s *scene) error {
		s.token = "secret"
		return s.answer("HTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 200 OK\r\nredlock-agent: 1\r\ncontent-type: application/x-ndjson\r\ntransfer-encoding: chunked\r\n\r\n"+
			chunk(`{"fen`)+chunk(`ce":17,"mark":0,"valid_ms":60000,"later":{"a":1}}`+"\n"+`{"mark":0,`)+chunk(`"valid_ms":60000}`+"\n"),
			chunk(`{"mark":0,"valid_ms":60000}`+"\n"+`{"released":true}`)+chunk("\n"))
	},
	"whose first line comes late": func(s *scene) error { // and that answers no mark
		return s.answer(held+chunk(`{"fence":17,"mark":0,"valid_ms":0}`+"\n"), "")
	},
	// The lease is over for a client that subtracts a hundredth, so it has to ask by a mark. Over TCP, because there it must subtract it.
	"whose first line comes in the last hundredth of the lease": func(s *scene) error {
		s.token = "secret"
		said := make(chan struct{})
		s.holds = func() { close(said) }
		return s.play(func(c net.Conn) {
			body, _, err := request(c)
			if err != nil {
				return
			}
			began := time.Now()
			s.pause(10 * time.Second)
			_, _ = io.WriteString(c, held+chunk(fmt.Sprintf(`{"fence":17,"mark":0,"valid_ms":%d}`+"\n", time.Since(began)*101/100/time.Millisecond)))
			_, _ = io.ReadFull(body, make([]byte, 2)) // the end of the request's line, and a mark
			select {
			case <-said:
				_, _ = io.WriteString(c, chunk(`{"lost":"lost","detail":"want the answer to a mark before you say that you have the lock"}`+"\n")+"0\r\n\r\n")
				return
			case <-time.After(time.Second):
			}
			_, _ = io.WriteString(c, chunk(`{"mark":1,"valid_ms":60000}`+"\n"))
			finish(c, body, chunk(`{"released":true}`+"\n"))
		})
	},
	"that has no room for two seconds": func(s *scene) error {
		var refused atomic.Bool
		return s.play(func(c net.Conn) {
			body, line, err := request(c)
			if err != nil {
				return
			}
			var asked struct{ Wait, Pulse rule.Duration }
			_ = json.Unmarshal(line, &asked) // what can't be read is missing
			const pause = rule.Duration(2 * time.Second)
			again := refused.Swap(true)
			most := rule.Duration(time.Minute)
			if again {
				most -= pause
			}
			detail := ""
			switch {
			case asked.Pulse <= 0 || asked.Pulse > rule.Duration(time.Minute):
				detail = "want a pulse within the patience"
			case asked.Wait <= most/2 || asked.Wait > most:
				detail = fmt.Sprintf("want a wait of %v or a little less", time.Duration(most))
			}
			switch {
			case detail != "":
				_, _ = io.WriteString(c, refusal("400 Bad Request", detail))
			case again:
				_, _ = io.WriteString(c, held+chunk(`{"fence":17,"mark":0,"valid_ms":60000}`+"\n"))
				finish(c, body, chunk(`{"released":true}`+"\n"))
				return
			default:
				s.pause(time.Duration(pause))
				_, _ = io.WriteString(c, refusal("503 Service Unavailable", "there is no room"))
			}
			_, _ = io.Copy(io.Discard, c) // until it has read that
		})
	},
	"whose lock had ended before": func(s *scene) error {
		s.token = "secret" // a client that has sent its whole request can't end it later
		return s.answer(held+chunk(`{"fence":17,"mark":0,"valid_ms":60000}`+"\n"), chunk(`{"released":false}`+"\n"))
	},
	"whose operator releases the lock": func(s *scene) error {
		holds := make(chan struct{})
		s.holds = func() { close(holds) }
		return s.play(func(c net.Conn) {
			if _, err := bufio.NewReader(c).ReadBytes('}'); err != nil {
				return
			}
			_, _ = io.WriteString(c, held+chunk(`{"fence":17,"mark":0,"valid_ms":60000}`+"\n"))
			<-holds
			_, _ = io.WriteString(c, chunk(`{"lost":"forced","detail":"the lock was released by force"}`+"\n"))
			_, _ = io.Copy(io.Discard, c)
		})
	},
	"whose masters forget what is done": func(s *scene) error {
		return s.answer(held+chunk(`{"fence":17,"mark":0,"valid_ms":60000}`+"\n"),
			chunk(`{"released":true,"unconfirmed":true,"forgotten":true,"detail":"too few masters have confirmed the release, and what was to be remembered: the key is free when the ttl is over, at the latest"}`+"\n"))
	},
	"stops while it is waited for": func(s *scene) error {
		return s.whileItWaits(func() error { s.end(); return nil })
	},
	"stops while it is waited for, and another comes": func(s *scene) error {
		return s.whileItWaits(func() error {
			s.end()
			s.pause(2 * time.Second) // nobody listens for longer than clients pause
			return s.serve()
		})
	},
	"dies while it is waited for, and another comes": func(s *scene) error {
		return s.whileItWaits(func() error {
			s.die()
			return s.serve()
		})
	},
	"dies while its lock is held": func(s *scene) error {
		s.holds = s.die
		return s.begin()
	},
	// The worker has waited for longer than a lease, so that counting from when a line has come would be too long.
	"hangs while its lock is held": func(s *scene) error {
		s.holds = func() {
			s.freeze()
			s.until = time.Now().Add(ttl)
		}
		return s.whileItWaits(func() error { s.pause(ttl + time.Second); return nil })
	},
}

// pause pauses, and no longer than the case lasts.
func (s *scene) pause(d time.Duration) {
	select {
	case <-time.After(d):
	case <-s.ctx.Done():
	}
}

// begin begins an agent that is well.
func (s *scene) begin() error {
	s.granted = true
	return s.beginOn([]string{"memory://a", "memory://b", "memory://c"})
}

func (s *scene) beginOn(masters []string) (err error) {
	s.locker, err = redlock.Open(masters, redlock.WithTTL(ttl), redlock.WithMaxTTL(30*time.Second), redlock.WithTimeout(time.Second), redlock.WithRestartGuard(0), redlock.WithLogger(slog.New(slog.DiscardHandler)))
	if err != nil {
		return err
	}
	return s.serve()
}

func (s *scene) listen() (err error) {
	network, address := "unix", filepath.Join(s.dir, "s")
	if s.token != "" {
		network, address = "tcp", "127.0.0.1:0"
	}
	if s.listener, err = net.Listen(network, address); err != nil {
		return err
	}
	s.address = s.listener.Addr().String()
	return nil
}

// serve starts an agent.
func (s *scene) serve() error {
	if err := s.listen(); err != nil {
		return err
	}
	var ctx context.Context
	ctx, s.retire = context.WithCancel(context.Background())
	served := make(chan struct{})
	s.served = served
	a := agent.New(s.locker, agent.WithToken(s.token))
	go func() {
		defer close(served)
		_ = a.Serve(ctx, bound, recording{s.listener, &s.record})
	}()
	return nil
}

// end has the agent end in order.
func (s *scene) end() {
	s.retire()
	<-s.served
}

// die has it end as if it were killed.
func (s *scene) die() {
	_ = s.listener.Close()
	s.cut()
	s.retire()
	<-s.served
}

// close ends all that is there.
func (s *scene) close() {
	s.thaw()
	if s.listener != nil {
		_ = s.listener.Close()
	}
	s.cut()
	if s.served != nil {
		s.retire()
		<-s.served
	}
	if s.locker != nil {
		_ = s.locker.Close()
	}
}

// whileItWaits begins an agent whose key k somebody else has, until a function has returned that is called when the worker waits for it.
func (s *scene) whileItWaits(do func() error) error {
	if err := s.begin(); err != nil {
		return err
	}
	other, err := s.locker.Lock(context.Background(), "k")
	if err != nil {
		return err
	}
	s.waits = func() error {
		defer func() { _ = other.Unlock() }()
		for end := time.Now().Add(bound / 2); s.locker.Status().Waiting == 0; s.pause(10 * time.Millisecond) {
			if time.Now().After(end) || s.ctx.Err() != nil {
				return errors.New("want a request for k that waits, because somebody else has it\ngot none")
			}
		}
		return do()
	}
	return nil
}

// requireFree fails unless a key is free soon and, if done is true, its work is remembered.
func (s *scene) requireFree(ctx context.Context, key string, done bool) error {
	s.thaw()
	lock, err := s.locker.Lock(ctx, key, redlock.WithWait(bound/4))
	if err != nil {
		return fmt.Errorf("want the key %q to be free after the end of the worker\ngot: %w", key, err)
	}
	if err := lock.Unlock(); err != nil || !done {
		return err
	}
	if _, err := s.locker.TryLock(ctx, key, redlock.WithRecall()); !errors.Is(err, redlock.ErrDone) {
		return fmt.Errorf("want the agent to know that the work is done, or the next client does it again\ngot: %v", err)
	}
	return nil
}

func chunk(text string) string { return fmt.Sprintf("%x\r\n%s\r\n", len(text), text) }

// answer has an agent that sends the same to each client: the beginning of a response once the request is there, and the rest at its end.
func (s *scene) answer(beginning, rest string) error {
	return s.play(func(c net.Conn) {
		body, _, err := request(c)
		if err != nil {
			return
		}
		_, _ = io.WriteString(c, beginning)
		finish(c, body, rest)
	})
}

// finish sends the rest of a response once the client has ended its request.
func finish(c net.Conn, body io.Reader, rest string) {
	if _, err := io.Copy(io.Discard, body); err == nil {
		_, _ = io.WriteString(c, rest+"0\r\n\r\n")
	}
}

// request reads a request, and from its body the line without its end: that of a client may lack it.
func request(c net.Conn) (body *bufio.Reader, line []byte, err error) {
	r, err := http.ReadRequest(bufio.NewReader(c))
	if err != nil {
		return nil, nil, err
	}
	body = bufio.NewReader(r.Body)
	if r.ContentLength >= 0 { // its end is that of the connection
		body = bufio.NewReader(io.MultiReader(r.Body, c))
	}
	line, err = body.ReadBytes('}')
	return body, line, err
}

func refusal(status, detail string) string {
	text := fmt.Sprintf(`{"detail":%q}`, detail)
	return fmt.Sprintf("HTTP/1.1 %s\r\nRedlock-Agent: 1\r\nRetry-After: 1\r\nConnection: close\r\nContent-Type: application/problem+json\r\nContent-Length: %d\r\n\r\n%s", status, len(text), text)
}

// play serves connections by a script.
func (s *scene) play(script func(net.Conn)) error {
	if err := s.listen(); err != nil {
		return err
	}
	go func() {
		for {
			c, err := recording{s.listener, &s.record}.Accept()
			if err != nil {
				return
			}
			go func() {
				defer func() { _ = c.Close() }()
				script(c)
			}()
		}
	}()
	return nil
}
