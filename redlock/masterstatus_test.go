package redlock

import (
	"reflect"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock/internal/link"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
)

// TestMasterStatus: each fact about a master has its way from the stream to those who operate it.
func TestMasterStatus(t *testing.T) {
	now := time.Now()
	status := masterStatus(link.State{
		Name: "a", Err: link.ErrSlow, Since: now, CountsFrom: now, Late: 0.5, RoundTrip: 1, ClockOffset: 1,
		Server: protocol.Server{Version: "8.0.0", Memory: protocol.Memory{Used: 1, Max: 2, Policy: "allkeys-lru"}, CertificateUntil: now},
	})
	for field, value := range reflect.ValueOf(status).Fields() {
		if value.IsZero() {
			t.Errorf("nothing sets %s", field.Name)
		}
	}
}
