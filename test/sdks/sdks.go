// Package sdks is for tests with the senders' own SDKs, which make sdks installs.
package sdks

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// Modules returns the folder of the SDKs, as NODE_PATH needs it, for a test in a package of this module. If they are not
// installed it skips the test, or fails it if SDKS=required.
func Modules(t *testing.T) string {
	t.Helper()
	folder, err := filepath.Abs("../../bin/sdks/node_modules")
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

// Python is the interpreter for which the distribution's packages are.
const Python = "/usr/bin/python3"

// RequirePython skips the test if a package of Python isn't installed, or fails it if SDKS=required.
func RequirePython(t *testing.T, name string) {
	t.Helper()
	err := exec.Command(Python, "-c", "import "+name).Run()
	switch {
	case err != nil && os.Getenv("SDKS") == "required":
		t.Fatalf("%s for Python: %v; run make sdks", name, err)
	case err != nil:
		t.Skipf("needs %s for Python: make sdks", name)
	}
}
