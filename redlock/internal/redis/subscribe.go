package redis

import (
	"context"
	"errors"
	"net"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
)

// Listen subscribes to a channel with the name of the process.
func (m *Master) Listen(ctx context.Context, process string, ready func(), message func(protocol.WakeUp)) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	o := m.options
	o.Dialer = func(_ context.Context, network, addr string) (net.Conn, error) {
		raw, err := m.dial(ctx, network, addr)
		if err == nil { // go-redis ignores the context while it reads
			context.AfterFunc(ctx, func() { _ = raw.Close() })
		}
		return raw, err
	}
	client := redis.NewClient(&o)
	defer func() { _ = client.Close() }()
	subscription := client.Subscribe(ctx, process)
	defer func() { _ = subscription.Close() }()
	for {
		received, err := subscription.Receive(ctx)
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err != nil:
			return classify(err)
		}
		switch received := received.(type) {
		case *redis.Subscription:
			ready()
		case *redis.Message:
			if w, err := parseWakeUp(received.Payload); err == nil {
				message(w)
			}
		}
	}
}

// parseWakeUp reads "<ticket> <key>", or "<ticket>#<call> <key>".
func parseWakeUp(payload string) (w protocol.WakeUp, err error) {
	ticket, key, found := strings.Cut(payload, " ")
	if !found {
		return w, errors.New("not a wake-up")
	}
	w.Key = key
	ticket, w.Call = protocol.CallOf(ticket)
	w.Ticket, err = strconv.ParseInt(ticket, 10, 64)
	return w, err
}
