package doctor_test

import (
	"strings"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/internal/doctor"
	"github.com/caddy-redlock/caddy-redlock/internal/redistest"
)

// TestFullDisk: both ways out of it that are advised bring the server back.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	for _, frees := range []bool{true, false} {
		server := redistest.Start(t, 1, "--appendonly", "yes", "--appendfsync", "everysec")[0]
		free := server.Fill()
		s := settings(server.URL())
		s.Guard = time.Second
		awaitUptime(t, server)
		refusal := func() doctor.Finding {
			_ = server.Client().Set(t.Context(), "a", "b", 0).Err() // what shows the server that its disk is full
			for _, f := range of(doctor.Examine(t.Context(), s), doctor.Rights) {
				return f
			}
			return doctor.Finding{}
		}
		await := func(what string, is func(doctor.Finding) bool) (f doctor.Finding) {
			t.Helper()
			for deadline := time.Now().Add(time.Minute); !is(f); time.Sleep(20 * time.Millisecond) {
				if f = refusal(); time.Now().After(deadline) {
					t.Fatalf("not %s: %+v", what, f)
				}
			}
			return f
		}
		f := await("refused", func(f doctor.Finding) bool { return strings.Contains(f.Text, "append-only file") })
		if !strings.HasPrefix(f.Advice, "Free space on its disk; or, ") {
			t.Errorf("%+v", f)
		}
		if frees {
			free()
		} else {
			server.Follow(f.Advice)
		}
		await("taken again", func(f doctor.Finding) bool { return f.Text == "" })
	}
}
