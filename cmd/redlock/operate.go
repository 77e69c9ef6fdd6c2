package main

import (
	"bytes"
	"context"
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

// operatorsCmds are the commands that caddy redlock has as well. Here they ask the masters.
func operatorsCmds() []*cobra.Command {
	program := &cli.Program{
		Name:   "redlock",
		Whom:   "this machine",
		Usage:  "[flags]",
		Help:   connect.Help,
		Source: func() cli.Source { return new(ownMasters) },
		Exit:   func(_ *cobra.Command, code int, err error) error { return &coded{code, err} },
	}
	var own connect.Settings
	examine := program.Doctor("[flags]", connect.Help, own.AddFlags, func(_ context.Context, flags *pflag.FlagSet) (doctor.Settings, error) {
		if err := connect.Environment(flags); err != nil {
			return doctor.Settings{}, err
		}
		masters, options, err := own.Resolve()
		return doctor.Settings{Options: options, Masters: masters, LeastTTL: options.TTL()}, err
	})
	return append(program.Commands(), examine)
}

// ownMasters are the masters of the flags, asked by a console in this process.
type ownMasters struct{ connect.Settings }

func (m *ownMasters) Open(flags *pflag.FlagSet) (cli.Endpoint, error) {
	if err := connect.Environment(flags); err != nil {
		return nil, err
	}
	locker, err := m.Settings.Open(redlock.WithLogger(slog.New(slog.DiscardHandler)))
	if err != nil {
		return nil, err
	}
	return &ownConsole{locker, console.New(func() []*redlock.Locker { return []*redlock.Locker{locker} },
		console.WithHosts("*"), console.WithLogger(slog.New(slog.DiscardHandler)))}, nil
}

type ownConsole struct {
	locker  *redlock.Locker
	handler http.Handler
}

// connectPatience is how long the masters have to be reached. Other masters are shown as still connecting.
const connectPatience = 2 * time.Second

func (o *ownConsole) Ask(ctx context.Context, method, path string, query url.Values, into any) error {
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
