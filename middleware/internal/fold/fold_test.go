package fold

import (
	"runtime"
	"strings"
	"testing"
)

// values are of all kinds that keys are made of.
var values = []string{
	"42", "042", "4_2", "-5", "+-5", "1.5", "1e5", "1e-5", "1.50e+2", "99999999999999999999", "7e99999", "0", "00", ".",
	"2026-1234", "2026-11-25", "1-2-3-4-5", "555-0100", "+49 89 1234", "192.168.0.1", "10-", "1_-2", "e-1", "1e", "1e5-3",
	"abc", "Abc", "ord-7", "pay_3N5", "a b", " a  b ", "straße", "ＡＢＣ", "σς", "é", "²", "٤٢", "\x00", "", " ",
	"123e4567-e89b-12d3-a456-426614174000", "12345678-1234-1234-1234-123456789012", "123E4567E89B12D3A456426614174000",
	"{123e4567-e89b-12d3-a456-426614174000}", "urn:uuid:123e4567-e89b-12d3-a456-426614174000", "1234567812341234123412345678901e",
}

// FuzzValue holds what is taken as it is against what reading it makes of it, and that a spelling is its own.
func FuzzValue(f *testing.F) {
	for _, value := range values {
		f.Add(value)
	}
	f.Fuzz(func(t *testing.T, value string) {
		if once, err := spelled(value); isPlain(value) && (err != nil || once != value) {
			t.Fatalf("%q is taken as it is, but is %q (%v)", value, once, err)
		}
		one, err := Value(value)
		if again, err2 := spelled(one); err == nil && (err2 != nil || again != one) {
			t.Fatalf("%q is %q, which is %q (%v)", value, one, again, err2)
		}
	})
}

// TestMemory holds that no kind of value takes more memory than a few copies of it: each request pays for that.
func TestMemory(t *testing.T) {
	const runs = 100
	for _, value := range values {
		_, _ = Value(value) // tables are made once
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for range runs {
			_, _ = Value(strings.Clone(value))
		}
		runtime.ReadMemStats(&after)
		if each := (after.TotalAlloc - before.TotalAlloc) / runs; each > 2<<10 {
			t.Errorf("%q takes %d bytes", value, each)
		}
	}
}
