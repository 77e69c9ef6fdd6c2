package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/caddy-redlock/caddy-redlock/console"
	"github.com/caddy-redlock/caddy-redlock/internal/programs/cli"
)

// agentPatience is how long an agent may take to answer, beyond a wait for a lock.
const agentPatience = 10 * time.Second

// errHangs is in the error for an agent that doesn't answer.
var errHangs = errors.New("if it hangs, start it again")

func silentFor(d time.Duration) error {
	return fmt.Errorf("it has not answered for %v: %w", d, errHangs)
}

// agentClient asks an agent.
type agentClient struct {
	address         string // as it was given
	network, target string
	token           string
	patience        time.Duration // for a whole response of call
}

// newAgentClient returns a client of the agent at unix:/path, or at host:port.
func newAgentClient(address, tokenFile string) (*agentClient, error) {
	token, err := tokenOf(tokenFile)
	if err != nil {
		return nil, err
	}
	if path, ok := strings.CutPrefix(address, "unix:"); ok && path != "" {
		return &agentClient{address, "unix", path, token, agentPatience}, nil
	}
	target := strings.TrimPrefix(address, "tcp:")
	if _, port, err := net.SplitHostPort(target); err != nil || port == "" {
		return nil, fmt.Errorf("--agent %s: want unix:/path of an agent's socket, or host:port", address)
	}
	return &agentClient{address, "tcp", target, token, agentPatience}, nil
}

// dial connects to the agent. The end of ctx closes the connection, unless kept is called before, which then reports true.
func (a *agentClient) dial(ctx context.Context) (conn net.Conn, kept func() bool, err error) {
	bounded, cancel := context.WithTimeoutCause(ctx, agentPatience, silentFor(agentPatience))
	defer cancel()
	conn, err = new(net.Dialer).DialContext(bounded, a.network, a.target)
	switch {
	case err == nil:
		return conn, context.AfterFunc(ctx, func() { _ = conn.Close() }), nil
	case errors.Is(err, os.ErrPermission):
		err = fmt.Errorf("%w: the agent's --socket-group and --socket-mode say who may open the socket; that of --operators is for its user and root", err)
	}
	return nil, nil, cmp.Or(context.Cause(bounded), err)
}

// send sends a request, with the beginning of a body in chunks if there is one.
func (a *agentClient) send(conn net.Conn, line string, header http.Header, body string) error {
	if a.token != "" {
		header.Set("Authorization", "Bearer "+a.token)
	}
	header.Set("Redlock-Agent", "1")
	request := bytes.NewBufferString(line + " HTTP/1.1\r\nHost: redlock\r\n")
	_ = header.Write(request) // a buffer takes all
	request.WriteString("\r\n" + chunk(body))
	_, err := conn.Write(request.Bytes())
	return err
}

func chunk(text string) string {
	if text == "" {
		return ""
	}
	return fmt.Sprintf("%x\r\n%s\r\n", len(text), text)
}

// call sends a request without a body, and returns the whole response.
func (a *agentClient) call(ctx context.Context, method, path string) (response *http.Response, body []byte, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, a.patience, silentFor(a.patience))
	defer cancel()
	conn, _, err := a.dial(ctx)
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = conn.Close() }()
	if err = a.send(conn, method+" "+path, http.Header{"Connection": {"close"}}, ""); err == nil {
		response, err = http.ReadResponse(bufio.NewReader(conn), nil)
	}
	if err == nil {
		body, err = io.ReadAll(response.Body)
	}
	if err != nil {
		return nil, nil, cmp.Or(context.Cause(ctx), err)
	}
	return response, body, nil
}

// forOperators is the title of what the socket for clients refuses.
const forOperators = "For operators"

// Ask asks the agent's console.
func (a *agentClient) Ask(ctx context.Context, method, path string, query url.Values, into any) error {
	response, body, err := a.call(ctx, method, "/console/"+path+"?"+query.Encode())
	if err != nil {
		return a.unreachable(err)
	}
	known, err := cli.Decode(response.StatusCode, response.Header, body, into)
	var problem *console.Problem
	switch {
	case !known:
		return a.something(response)
	case !errors.As(err, &problem):
		return err
	case problem.Title == forOperators:
		return fmt.Errorf("%s is for clients, who see only masters and inspect KEY: ask at the socket of the agent's --operators, such as --agent %s", a.address, operatorsAddress)
	case problem.Status == http.StatusUnauthorized:
		return fmt.Errorf("the agent at %s wants its token: --token-file or REDLOCK_AGENT_TOKEN", a.address)
	}
	return err
}

// operatorsAddress is where the files in deploy have the socket for operators.
const operatorsAddress = "unix:/run/redlock-operators/redlock.sock"

func (a *agentClient) Close() {} // no connection is kept

// unreachable says what to do if nobody answers, or nobody who speaks HTTP.
func (a *agentClient) unreachable(err error) error {
	switch {
	case errors.Is(err, os.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("no agent answers at %s: is it running, with this address in its --operators or --listen? (%w)", a.address, err)
	case errors.As(err, new(net.Error)), errors.Is(err, errHangs), errors.Is(err, os.ErrPermission):
		return fmt.Errorf("the agent at %s: %w", a.address, err)
	}
	return fmt.Errorf("something else than an agent answers at %s: %w", a.address, err)
}

// something is the error for a response that isn't that of the console.
func (a *agentClient) something(response *http.Response) error {
	if response.Header.Get("Redlock-Agent") != "" {
		return fmt.Errorf("the agent at %s (status %d) doesn't know what was asked: it has another version, or this is its socket for operators and not for clients", a.address, response.StatusCode)
	}
	return fmt.Errorf("something else than an agent answers at %s (status %d): for a Caddy, type caddy redlock", a.address, response.StatusCode)
}
