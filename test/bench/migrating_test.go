package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/caddy-redlock/caddy-redlock/internal/tests/redistest"
)

// TestMigrating builds the program in migrating, with work that fails if it is done twice at once, and runs processes of each step
// of the change beside those of the next one.
func TestMigrating(t *testing.T) {
	text, err := os.ReadFile("migrating/main.go")
	if err != nil {
		t.Fatal(err)
	}
	program := string(text)
	const work = `	fmt.Println("sending invoices")` + "\n"
	if !strings.Contains(program, work) || !strings.Contains(program, "redlock.Open(masters)") {
		t.Fatalf("another program:\n%s", program)
	}
	for i, server := range redistest.Start(t, 3) {
		program = strings.ReplaceAll(program, fmt.Sprintf("redis://10.0.0.%d:6379", i+1), server.URL())
	}
	program = strings.NewReplacer(
		"redlock.Open(masters)", "redlock.Open(masters, redlock.WithRestartGuard(0), redlock.WithTimeout(2*time.Second))",
		"30*time.Second", "2*time.Minute",
		work, `	if err := os.Mkdir(os.Getenv("ALONE"), 0o700); err != nil {
		return err
	}
	time.Sleep(10 * time.Millisecond)
	if err := os.Remove(os.Getenv("ALONE")); err != nil {
		return err
	}
`, "\t\"fmt\"\n", "").Replace(program)
	folder := t.TempDir()
	binary, alone := filepath.Join(folder, "program"), filepath.Join(folder, "alone")
	file := filepath.Join(folder, "main.go")
	if err := os.WriteFile(file, []byte(program), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("go", "build", fmt.Sprintf("-race=%v", redistest.Race), "-o", binary, file).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s\n%s", err, out, program)
	}
	for _, steps := range [][]string{{"1", "2"}, {"2", "3"}} {
		var done sync.WaitGroup
		for i := range 10 {
			done.Go(func() {
				command := exec.Command(binary)
				command.Env = append(os.Environ(), "STEP="+steps[i%2], "ALONE="+alone)
				if out, err := command.CombinedOutput(); err != nil {
					t.Errorf("a process of step %s beside one of the steps %v: %v\n%s", steps[i%2], steps, err, out)
				}
			})
		}
		done.Wait()
	}
}
