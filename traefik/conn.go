package traefik

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"strconv"
	"time"
)

// conn is a connection to the agent. The plugin doesn't use the transport of net/http: while the body of a request is open, that transport doesn't
// notice that the agent is gone, and its goroutines cost more than the few calls here.
type conn struct {
	net    net.Conn
	reader *bufio.Reader
	sweeps int  // how often the agent had swept when the connection became idle
	kept   bool // the connection was idle before
	again  bool // the agent counted as away when the connection was taken
}

const (
	idleAfter = 30 * time.Second // a connection is closed after once or twice this time; the agent keeps idle connections for longer
	keepIdle  = 512
)

func (a *agent) dial(ctx context.Context) (*conn, error) {
	c, err := a.open(ctx)
	if errors.Is(err, os.ErrPermission) {
		return nil, fmt.Errorf("%w: the agent's --socket-group and --socket-mode say who may open the socket", err)
	}
	if err != nil {
		return nil, err
	}
	return &conn{net: c, reader: bufio.NewReader(c)}, nil
}

// connect returns the idle connection that was used last, or a new one.
func (a *agent) connect(ctx context.Context, anew bool) (*conn, error) {
	a.mu.Lock()
	again := a.trouble != ""
	if n := len(a.idle); n > 0 && !anew {
		c := a.idle[n-1]
		a.idle = a.idle[:n-1]
		a.mu.Unlock()
		c.kept = true
		c.again = again
		return c, nil
	}
	a.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, silence)
	defer cancel()
	c, err := a.dial(ctx)
	if err == nil {
		c.again = again
	}
	return c, err
}

// keep makes a connection idle when its request and response have ended.
func (a *agent) keep(c *conn) {
	a.mu.Lock()
	if len(a.idle) >= keepIdle {
		a.mu.Unlock()
		_ = c.net.Close()
		return
	}
	c.sweeps = a.sweeps
	a.idle = append(a.idle, c)
	if !a.sweeping {
		a.sweeping = true
		time.AfterFunc(idleAfter, a.sweep)
	}
	a.mu.Unlock()
}

// sweep closes the connections that were not used since the sweep before.
func (a *agent) sweep() {
	a.mu.Lock()
	defer a.mu.Unlock()
	old := 0
	for old < len(a.idle) && a.idle[old].sweeps < a.sweeps {
		_ = a.idle[old].net.Close()
		old++
	}
	a.idle = append([]*conn{}, a.idle[old:]...)
	a.sweeps++
	a.sweeping = len(a.idle) > 0
	if a.sweeping {
		time.AfterFunc(idleAfter, a.sweep)
	}
}

// drop closes the idle connections, because their agent is gone.
func (a *agent) drop() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, c := range a.idle {
		_ = c.net.Close()
	}
	a.idle = nil
}

// chunk returns a part of a request's body as it is sent.
func chunk(data []byte) []byte {
	text := make([]byte, 0, len(data)+16)
	text = strconv.AppendInt(text, int64(len(data)), 16)
	text = append(text, "\r\n"...)
	text = append(text, data...)
	return append(text, "\r\n"...)
}

var lastChunk = []byte("0\r\n\r\n")

// response reads the head of the response. It returns an error if no agent has answered, or an agent with another version of the
// protocol.
func (c *conn) response() (*http.Response, error) {
	response, err := http.ReadResponse(c.reader, nil)
	if err != nil {
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return nil, errSilent
		}
		return nil, fmt.Errorf("it does not answer as an agent: %w", err)
	}
	speaks := response.Header.Get("Redlock-Agent")
	if speaks == version {
		return response, nil
	}
	if speaks == "" {
		return nil, errors.New("something else than an agent answers there")
	}
	return nil, errors.New("the agent there speaks version " + speaks + " of its protocol, and this plugin version " + version + ": use the plugin and the agent of one release")
}
