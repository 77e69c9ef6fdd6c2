package rpc_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/caddy-redlock/caddy-redlock/examples/stacks/rpc"
	"github.com/caddy-redlock/caddy-redlock/internal/tests/redistest"
	"github.com/caddy-redlock/caddy-redlock/redlock"
	"github.com/caddy-redlock/caddy-redlock/redlock/inspect"
)

const procedure = "/shop.v1.Orders/Pay"

type (
	order  = wrapperspb.StringValue
	token  = wrapperspb.UInt64Value
	client = connect.Client[order, token]
	pay    = func(context.Context, *connect.Request[order]) (*connect.Response[token], error)
)

// serve runs a server that pays, with a locker of its own, and returns a client of each protocol.
func serve(t *testing.T, masters []*redistest.Server, wait time.Duration, pay pay) (locker *redlock.Locker, clients []*client) {
	t.Helper()
	locker, err := redlock.Open(redistest.URLs(masters), redlock.WithRestartGuard(0), redlock.WithTimeout(time.Second))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = locker.Close() })
	key := func(request connect.AnyRequest) string {
		if id := request.Any().(*order).GetValue(); id != "" {
			return "order:" + id
		}
		return ""
	}
	mux := http.NewServeMux()
	mux.Handle(procedure, connect.NewUnaryHandler(procedure, pay, connect.WithInterceptors(rpc.OneAtATime(locker, key, wait))))
	server := httptest.NewUnstartedServer(mux)
	server.EnableHTTP2 = true // for gRPC
	server.StartTLS()
	t.Cleanup(server.Close)
	for _, protocol := range []connect.ClientOption{connect.WithGRPC(), connect.WithGRPCWeb(), connect.WithProtoJSON()} {
		clients = append(clients, connect.NewClient[order, token](server.Client(), server.URL+procedure, protocol))
	}
	return locker, clients
}

// TestOneAtATime: calls of three protocols to two servers pay one order one after the other, each with a larger fencing token.
func TestOneAtATime(t *testing.T) {
	t.Parallel()
	masters := redistest.Start(t, 3)
	var inside, last atomic.Uint64
	handler := func(ctx context.Context, r *connect.Request[order]) (*connect.Response[token], error) {
		fence, locked := rpc.Fence(ctx)
		if n := inside.Add(1); n != 1 || !locked || fence <= last.Swap(fence) {
			t.Errorf("%d at once, fence %d, locked %v", n, fence, locked)
		}
		defer inside.Add(^uint64(0))
		return connect.NewResponse(wrapperspb.UInt64(fence)), ctx.Err()
	}
	var clients []*client
	for range 2 {
		_, some := serve(t, masters, 2*time.Minute, handler)
		clients = append(clients, some...)
	}
	var calls sync.WaitGroup
	for _, c := range clients {
		calls.Go(func() {
			for range 3 {
				if paid, err := c.CallUnary(t.Context(), connect.NewRequest(wrapperspb.String("42"))); err != nil || paid.Msg.GetValue() == 0 {
					t.Errorf("%v: %v", paid, err)
				}
			}
		})
	}
	calls.Wait()
}

// TestCodes: what a client is told, and that a call whose lock is ended by force ends.
func TestCodes(t *testing.T) {
	t.Parallel()
	masters := redistest.Start(t, 3)
	inside := make(chan uint64)
	locker, clients := serve(t, masters, 0, func(ctx context.Context, _ *connect.Request[order]) (*connect.Response[token], error) {
		fence, _ := rpc.Fence(ctx)
		select {
		case inside <- fence:
		case <-ctx.Done():
		}
		<-ctx.Done()
		return nil, ctx.Err()
	})
	ask := func(c *client, id string) error {
		_, err := c.CallUnary(t.Context(), connect.NewRequest(wrapperspb.String(id)))
		return err
	}
	first := make(chan error, 1)
	go func() { first <- ask(clients[0], "42") }()
	fence := <-inside
	for _, c := range clients {
		if err := ask(c, "42"); connect.CodeOf(err) != connect.CodeAborted {
			t.Errorf("while another runs: %v", err)
		}
		if err := ask(c, ""); connect.CodeOf(err) != connect.CodeInvalidArgument {
			t.Errorf("without an order: %v", err)
		}
	}
	for len(first) == 0 { // it has ended if a reply was late
		err := inspect.Force(t.Context(), locker, "order:42", 0, fence)
		if err == nil {
			break
		}
		if !errors.Is(err, inspect.ErrFenceChanged) && !errors.Is(err, redlock.ErrNoQuorum) { // on a busy machine the masters forget the fence until the lease is renewed
			t.Fatal(err)
		}
		time.Sleep(10 * time.Millisecond)
	}
	if err := <-first; connect.CodeOf(err) != connect.CodeUnknown {
		t.Errorf("the call that lost its lock: %v", err)
	}
	if err := locker.Close(); err != nil && !errors.Is(err, redlock.ErrForced) {
		t.Error(err)
	}
	if err := ask(clients[1], "42"); connect.CodeOf(err) != connect.CodeUnavailable {
		t.Errorf("after Close: %v", err)
	}
}
