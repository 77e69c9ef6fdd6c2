package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"syscall"
	"time"

	"golang.org/x/net/netutil"
)

const (
	takeOver    = 10 * time.Second // how long an agent tries to get the port for metrics of the agent that it replaces, which notices within a second
	mostScrapes = 32               // connections for metrics, so that they leave files for clients
)

// metricsListener opens the address of --metrics-listen. It returns nil if there is none, or if another process has the port and may be the agent that
// this one replaces.
func (a *agentCommand) metricsListener() (net.Listener, error) {
	if a.metrics == "" {
		return nil, nil
	}
	l, err := a.open(a.metrics)
	switch {
	case err == nil:
		return l, nil
	case a.socket.replace && errors.Is(err, syscall.EADDRINUSE):
		return nil, nil
	}
	return nil, fmt.Errorf("--metrics-listen %s: %w", a.metrics, err)
}

// serveMetrics serves on the listener of metricsListener until stop is called. If there is no listener yet, it opens one as soon as that is possible.
func (a *agentCommand) serveMetrics(l net.Listener, h http.Handler, logger *slog.Logger) (stop func()) {
	server := &http.Server{Handler: h, ReadTimeout: 5 * time.Second, WriteTimeout: 30 * time.Second, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 16 << 10,
		ErrorLog: slog.NewLogLogger(logger.Handler(), slog.LevelError)}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		var err error
		if l == nil {
			l, err = listenSoon(ctx, func() (net.Listener, error) { return a.open(a.metrics) })
		} else if u, ok := l.(*unixSocket); ok {
			err = u.publish()
		}
		if err == nil {
			logger.Info("agent serves metrics", "address", l.Addr().String())
			err = server.Serve(netutil.LimitListener(l, mostScrapes))
		}
		if ctx.Err() == nil {
			logger.Error("metrics are not served", "err", fmt.Errorf("--metrics-listen %s: %w", a.metrics, err))
		}
	}()
	return sync.OnceFunc(func() {
		cancel()
		_ = server.Close()
		<-ended
	})
}

// listenSoon calls listen until it returns a listener, or until takeOver is over.
func listenSoon(ctx context.Context, listen func() (net.Listener, error)) (net.Listener, error) {
	for last := time.Now().Add(takeOver); ; {
		l, err := listen()
		if err == nil || !time.Now().Before(last) {
			return l, err
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}
