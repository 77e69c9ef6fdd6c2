package e2e

import "testing"

// needTime has make test-programs run a test, and make test skip it.
func needTime(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("make test-programs runs it: it takes long")
	}
}
