package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/caddy-redlock/caddy-redlock/console"
	"github.com/caddy-redlock/caddy-redlock/internal/programs/cli"
	"github.com/caddy-redlock/caddy-redlock/internal/programs/connect"
	"github.com/caddy-redlock/caddy-redlock/internal/programs/doctor"
	"github.com/caddy-redlock/caddy-redlock/redlock"
)

// operatorsCmds are the commands that caddy redlock has as well. Here they ask the masters, or an agent.
func operatorsCmds() []*cobra.Command {
	program := &cli.Program{
		Name:   "redlock",
		Whom:   "this machine, or to an agent",
		Usage:  "[--agent <address>] [flags]",
		Help:   connect.Help + "\n" + agentHelp,
		Source: func() cli.Source { return new(asked) },
		Exit:   func(_ *cobra.Command, code int, err error) error { return &coded{code, err} },
	}
	lister := *program
	lister.Whom, lister.Usage, lister.Help = "an agent", "--agent <address> [--json]", agentHelp
	lister.Source = func() cli.Source { return &asked{agents: true} }
	var examined asked
	examine := program.Doctor(program.Usage, program.Help, examined.AddFlags, examined.examine)
	return append(program.Commands(), lister.Locks(), examine, readyCmd())
}

const agentHelp = `
With --agent or REDLOCK_AGENT an agent is asked, at the socket of its --operators. At the
socket of its clients, and at host:port, it answers masters and inspect KEY alone.`

// asked are the masters of the flags, asked by a console in this process; or an agent.
type asked struct {
	own    connect.Settings
	agents bool // whether it must be an agent

	agent, tokenFile string
}

func (a *asked) AddFlags(flags *pflag.FlagSet) {
	if !a.agents {
		a.own.AddFlags(flags)
	}
	flags.StringVar(&a.agent, "agent", "", "Agent to ask, such as "+operatorsAddress+"; or REDLOCK_AGENT")
	flags.StringVar(&a.tokenFile, "token-file", "", "File with the token of an agent at host:port; or REDLOCK_AGENT_TOKEN")
}

// client returns a client of the agent that the flags name, or nil if they name masters.
func (a *asked) client(flags *pflag.FlagSet) (*agentClient, error) {
	if flags.Changed("agent") && (flags.Changed("masters") || flags.Changed("masters-file")) {
		return nil, errors.New("--agent and --masters: want one of them")
	}
	if err := connect.Variables(flags, "agent", "token-file"); err != nil {
		return nil, err
	}
	switch {
	case a.agent != "":
		return newAgentClient(a.agent, a.tokenFile)
	case a.agents:
		return nil, errNoHolder
	}
	if err := connect.Environment(flags); err != nil {
		return nil, err
	}
	if len(a.own.Masters) == 0 && a.own.MastersFile == "" {
		return nil, errors.New("nobody to ask: want --agent " + operatorsAddress + ", the socket of an agent's operators, or --masters")
	}
	return nil, nil
}

// examine looks at the masters, or has the agent look at its own.
func (a *asked) examine(ctx context.Context, flags *pflag.FlagSet, patience time.Duration) (report doctor.Report, err error) {
	client, err := a.client(flags)
	if err != nil {
		return report, err
	}
	if client != nil {
		client.patience += doctor.Longest(patience)
		err = client.Ask(ctx, http.MethodGet, "doctor", url.Values{"patience": {patience.String()}}, &report)
		return report, err
	}
	masters, options, err := a.own.Resolve()
	if err != nil {
		return report, err
	}
	return doctor.Examine(ctx, examination(masters, options, patience)), nil
}

func examination(masters []redlock.Master, o connect.Options, patience time.Duration) doctor.Settings {
	return doctor.Settings{Options: o, Masters: masters, LeastTTL: o.TTL(), Patience: patience}
}

func (a *asked) Open(flags *pflag.FlagSet) (cli.Endpoint, error) {
	if client, err := a.client(flags); client != nil || err != nil {
		return client, err
	}
	locker, err := a.own.Open(redlock.WithLogger(slog.New(slog.DiscardHandler)))
	if err != nil {
		return nil, err
	}
	return &ownConsole{locker, console.New(func() []*redlock.Locker { return []*redlock.Locker{locker} },
		console.WithHosts("*"), console.WithLogger(slog.New(slog.DiscardHandler)))}, nil
}

// errNoHolder is the error of asking this process itself what it holds.
var errNoHolder = errors.New("this command has no keys itself: ask an agent, such as --agent " + operatorsAddress + ", or type caddy redlock for a Caddy")

type ownConsole struct {
	locker  *redlock.Locker
	handler http.Handler
}

// connectPatience is how long the masters have to be reached. Other masters are shown as still connecting.
const connectPatience = 2 * time.Second

func (o *ownConsole) Ask(ctx context.Context, method, path string, query url.Values, into any) error {
	if path == "locks" && !query.Has("key") {
		return errNoHolder
	}
	o.awaitMasters(ctx)
	r, err := http.NewRequestWithContext(ctx, method, "/"+path+"?"+query.Encode(), nil)
	if err != nil {
		return err
	}
	w := &recorder{header: make(http.Header), status: http.StatusOK}
	o.handler.ServeHTTP(w, r)
	if known, err := cli.Decode(w.status, w.header, w.Bytes(), into); known {
		return err
	}
	return fmt.Errorf("status %d: %s", w.status, w.Bytes())
}

// awaitMasters waits until it is known of each master whether it can be reached, because the new locker has asked none of them before.
func (o *ownConsole) awaitMasters(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, connectPatience)
	defer cancel()
	connecting := func(m redlock.MasterStatus) bool { return m.State == redlock.MasterConnecting }
	for slices.ContainsFunc(o.locker.Status().Masters, connecting) && ctx.Err() == nil {
		time.Sleep(time.Millisecond)
	}
}

func (o *ownConsole) Close() { _ = o.locker.Close() } // nothing is held

type recorder struct {
	bytes.Buffer
	header http.Header
	status int
}

func (w *recorder) Header() http.Header    { return w.header }
func (w *recorder) WriteHeader(status int) { w.status = status }
