package e2e

import (
	"os"
	"testing"
)

// needTime skips a test that takes many seconds, unless make operating runs it.
func needTime(t *testing.T) {
	t.Helper()
	if os.Getenv("OPERATING") == "" && os.Getenv("RELOADS") == "" {
		t.Skip("make operating runs it: it takes long")
	}
}
