package redlock

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock/internal/link"
	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
)

// TestMasterStatus: each fact about a master has its way from the stream to those who operate it, or is said here to be for votes alone.
func TestMasterStatus(t *testing.T) {
	now := time.Now()
	state := link.State{Name: "a", Err: link.ErrSlow, Since: now, CountsFrom: now, Late: 0.5, RoundTrip: 1, ClockOffset: 1}
	var hidden []string
	for _, of := range []reflect.Value{reflect.ValueOf(&state.Server).Elem(), reflect.ValueOf(&state.Server.Memory).Elem()} {
		for field, value := range of.Fields() {
			before := masterStatus(state)
			switch known := value.Addr().Interface().(type) {
			case *string:
				*known = "7.0.15"
			case *bool:
				*known = true
			case *int64:
				*known = 1
			case *time.Duration:
				*known = time.Second
			case *time.Time:
				*known = now
			case *protocol.Memory: // its fields follow
				continue
			case *protocol.Past:
				*known = protocol.Past{Known: true, Born: 1, Lost: true}
			default:
				t.Errorf("%s is of a type that this test can't set", field.Name)
			}
			if masterStatus(state) == before {
				hidden = append(hidden, field.Name)
			}
		}
	}
	if got, want := strings.Join(hidden, " "), "RunID Mode Uptime HasUptime Role Past Time Sent Received"; got != want {
		t.Errorf("status.go doesn't show %q of a server, want %q", got, want)
	}
	for field, value := range reflect.ValueOf(masterStatus(state)).Fields() {
		if value.IsZero() {
			t.Errorf("nothing sets %s", field.Name)
		}
	}
}
