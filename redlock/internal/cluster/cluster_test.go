package cluster

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/caddy-redlock/caddy-redlock/redlock/internal/admission"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/link"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/redis"
)

type nobody struct{}

func (nobody) Up(string)       {}
func (nobody) Down(link.State) {}

// TestMadeAnew: what a node that was cut off says of former times counts for nothing; but a cluster that was made anew, and counts its
// epochs from the beginning, is found again.
func TestMadeAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		away := errors.New("away")
		m := &Master{Cluster: redis.NewCluster(goredis.ClusterOptions{
			Addrs:        []string{"seed:1"},
			ClusterSlots: func(context.Context) ([]goredis.ClusterSlot, error) { return nil, away },
			Dialer:       func(context.Context, string, string) (net.Conn, error) { return nil, away },
		})}
		logger := slog.New(slog.DiscardHandler)
		seats := admission.New(1, admission.Settings{MaxTTL: time.Minute, Logger: logger})
		seat := seats.Add(m)
		seat.OnReached = func(protocol.Server) {}
		c := Open(m, link.Settings{MaxTTL: time.Minute, Timeout: time.Second, Logger: logger, Watcher: nobody{}}, seat)
		defer func() { _ = c.Close(0) }()
		told := func(epoch int64, addr, want string) {
			t.Helper()
			c.apply(redis.Topology{Epoch: epoch, Owners: map[string][]redis.SlotRange{addr: {{First: 0, Last: redis.Slots - 1}}}})
			if at := c.At("key").String(); !strings.HasPrefix(at, want+" of ") {
				t.Errorf("the key is at %s, want %s", at, want)
			}
		}
		told(20, "former:1", "former:1")
		told(3, "new:1", "former:1")
		time.Sleep(time.Minute)
		told(20, "former:1", "former:1")
		time.Sleep(time.Minute)
		told(3, "new:1", "former:1")
		time.Sleep(time.Minute)
		told(3, "new:1", "new:1")
	})
}
