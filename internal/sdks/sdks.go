// Package sdks is for tests with the senders' own SDKs, which make sdks installs.
package sdks

import (
	"os"
	"path/filepath"
	"testing"
)

// Modules returns the folder of the SDKs, as NODE_PATH needs it, for a test in a package one level below the top. If they are not
// installed it skips the test, or fails it if SDKS=required.
func Modules(t *testing.T) string {
	t.Helper()
	folder, err := filepath.Abs("../bin/sdks/node_modules")
	if err == nil {
		_, err = os.Stat(filepath.Join(folder, "svix/package.json"))
	}
	switch {
	case err != nil && os.Getenv("SDKS") == "required":
		t.Fatalf("%v; run make sdks", err)
	case err != nil:
		t.Skip("needs the senders' SDKs: make sdks")
	}
	return folder
}
