package redis

import (
	"context"
	"errors"
	"net"
	"strings"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
)

// quiet is how long a subscription may be silent before the server is asked for a sign of life. A waiting call with the default TTL asks for the lock
// again after 3.3 s anyway, so the loss of a wake-up with its connection delays few calls.
const quiet = 2 * time.Second

// Listen subscribes to the channel that has the name of the process.
func (m *Master) Listen(ctx context.Context, process string, patience time.Duration, ready func(), message func(protocol.WakeUp)) error {
	connecting, cancel := context.WithTimeout(ctx, protocol.ConnectTrips*patience)
	defer cancel()
	c, err := m.connect(connecting, func(ctx context.Context, c *conn, _ *time.Time) error {
		return c.session.Do(ctx, "SUBSCRIBE", process).Err()
	})
	if err == nil {
		defer c.Close()
		defer context.AfterFunc(ctx, c.abandon)()
		ready()
		err = c.hear(process, patience, message)
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// hear passes on wake-ups until the connection ends, or stays silent after the server was asked for a sign of life. The question is a second
// subscription to the same channel, which changes nothing and needs no further right.
func (c *conn) hear(process string, patience time.Duration, message func(protocol.WakeUp)) error {
	again := appendBulk(appendBulk(appendArray(nil, 2), "SUBSCRIBE"), process)
	for asked := false; ; {
		silence := quiet
		if asked {
			silence = patience
		}
		if err := c.raw.SetDeadline(time.Now().Add(silence)); err != nil {
			return err
		}
		err := c.Wait()
		var late net.Error
		if errors.As(err, &late) && late.Timeout() && !asked {
			asked = true
			if err = c.raw.SetDeadline(time.Now().Add(patience)); err == nil {
				_, err = c.raw.Write(again)
			}
			if err != nil {
				return err
			}
			continue
		}
		if err == nil {
			err = c.raw.SetDeadline(time.Now().Add(patience))
		}
		if err == nil {
			err = c.value.read(c.in)
		}
		if err == nil {
			err = c.value.published(message)
		}
		if err != nil {
			return err
		}
		asked = false
	}
}

// published handles a value from a subscription: a message, or the confirmation of the subscription. It ignores messages that are no wake-ups,
// because others may publish, too.
func (v *value) published(message func(protocol.WakeUp)) error {
	switch {
	case v.kind == '-':
		return ErrorOf(v.text)
	case v.kind != '*' || len(v.fields) != 3 || v.fields[0].kind != '$' || v.fields[1].kind != '$':
	case v.fields[0].text == "subscribe":
		return nil
	case v.fields[0].text == "message" && v.fields[2].kind == '$':
		if w, ok := parseWakeUp(v.fields[2].text); ok {
			message(w)
		}
		return nil
	}
	return unexpected(v)
}

// parseWakeUp reads "<ticket> <key>", or "<ticket>#<call> <key>".
func parseWakeUp(payload string) (w protocol.WakeUp, ok bool) {
	ticket, key, ok := strings.Cut(payload, " ")
	if !ok {
		return w, false
	}
	w.Key = key
	ticket, w.Call = protocol.CallOf(ticket)
	w.Ticket, ok = protocol.ParseNumber(ticket, protocol.MaxTime.Microseconds())
	return w, ok
}
