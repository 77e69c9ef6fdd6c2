package redistest

import (
	_ "embed"
	"encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

//go:embed testdata/fakeclock.c
var fakeClock []byte

// Clock is a wall clock that is as wrong as a test wants.
type Clock struct {
	tb   testing.TB
	env  []string
	file *os.File
}

// NewClock returns a clock that is right until Set is called.
func NewClock(tb testing.TB) *Clock {
	tb.Helper()
	dir := tb.TempDir()
	source, library, file := filepath.Join(dir, "fakeclock.c"), filepath.Join(dir, "fakeclock.so"), filepath.Join(dir, "clock")
	if err := os.WriteFile(source, fakeClock, 0o600); err != nil {
		tb.Fatal(err)
	}
	if out, err := exec.Command("cc", "-shared", "-fPIC", "-o", library, source).CombinedOutput(); err != nil {
		tb.Fatalf("cc, the C compiler, which go test -race needs too: %v: %s", err, out)
	}
	setting, err := os.OpenFile(file, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = setting.Close() })
	c := &Clock{tb, []string{"LD_PRELOAD=" + library, "FAKECLOCK=" + file}, setting}
	c.Set(0, 0)
	return c
}

// Env returns the environment variables by which a server, started by StartWith, goes by this clock.
func (c *Clock) Env() []string { return c.env }

// Set sets the clock this far ahead at once, and lets it run fast by so many thousandths from now on.
func (c *Clock) Set(ahead time.Duration, permille int64) {
	c.tb.Helper()
	setting := binary.NativeEndian.AppendUint64(nil, uint64(time.Now().UnixMicro()))
	setting = binary.NativeEndian.AppendUint64(setting, uint64(ahead.Microseconds()))
	setting = binary.NativeEndian.AppendUint64(setting, uint64(permille))
	if _, err := c.file.WriteAt(setting, 0); err != nil {
		c.tb.Fatal(err)
	}
}
