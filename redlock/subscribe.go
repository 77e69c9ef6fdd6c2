package redlock

import (
	"context"
	"errors"
	"net"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"
)

// Listen subscribes to a channel with the name of the process.
func (m *redisMaster) Listen(ctx context.Context, process string, ready func(), message func(WakeUp)) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	client := m.open(func(_ context.Context, network, addr string) (net.Conn, error) {
		conn, err := m.dial(ctx, network, addr)
		if err == nil { // go-redis looks at no context while it reads
			context.AfterFunc(ctx, func() { _ = conn.Close() })
		}
		return conn, err
	})
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

// parseWakeUp reads "<ticket> <key>".
func parseWakeUp(payload string) (w WakeUp, err error) {
	ticket, key, found := strings.Cut(payload, " ")
	if !found {
		return w, errors.New("not a wake-up")
	}
	w.Key = key
	w.Ticket, err = strconv.ParseInt(ticket, 10, 64)
	return w, err
}
