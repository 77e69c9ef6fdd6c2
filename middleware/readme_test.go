package middleware_test

import (
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestProgramInREADME builds the program that README shows for net/http exactly as it is, but for the addresses, and pays an
// order with it.
func TestProgramInREADME(t *testing.T) {
	readme, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(readme), "\n## Use it in net/http\n")
	section, _, _ = strings.Cut(section, "\n## ")
	_, program, _ := strings.Cut(section, "\n```go\n")
	program, _, found := strings.Cut(program, "\n```\n")
	if !found || !strings.HasPrefix(program, "package main\n") || !strings.Contains(program, `"127.0.0.1:8080"`) {
		t.Fatalf("README has no program for net/http that listens on 127.0.0.1:8080:\n%s", program)
	}
	program = strings.NewReplacer("redis://10.0.0.", "memory://", ":6379", "", `"127.0.0.1:8080"`, `os.Getenv("ADDRESS")`).Replace(program)
	dir := t.TempDir()
	file, binary := filepath.Join(dir, "main.go"), filepath.Join(dir, "program")
	if err := os.WriteFile(file, []byte(program), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("go", "build", "-o", binary, file).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s\n%s", err, out, program)
	}
	url, stop := start(t, binary)
	if paid := post(t, url+"/orders/42/pay"); paid.StatusCode != http.StatusOK || !strings.Contains(paid.body, "order 42") {
		t.Errorf("%d %s", paid.StatusCode, paid.body)
	}
	requireProblem(t, post(t, url+"/orders/x/pay"), http.StatusBadRequest, "bad_key")
	stop()
}

// start runs a server until stop is called, on a port that no other program has taken meanwhile.
func start(t *testing.T, binary string) (url string, stop func()) {
	t.Helper()
	var log safeBuffer
	for range 10 {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		address := listener.Addr().String()
		_ = listener.Close()
		program := exec.Command(binary)
		program.Env = append(os.Environ(), "ADDRESS="+address)
		program.Stdout, program.Stderr = &log, &log
		if err := program.Start(); err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() { ended <- program.Wait() }()
		t.Cleanup(func() { _ = program.Process.Kill() })
		if !answers(t, address, ended) {
			continue
		}
		return "http://" + address, func() {
			t.Helper()
			if err := program.Process.Signal(os.Interrupt); err != nil {
				t.Fatal(err)
			}
			if err := receive(t, ended, "end of the program"); err != nil {
				t.Errorf("%v: %s", err, &log)
			}
		}
	}
	t.Fatalf("the program does not run: %s", &log)
	return "", nil
}

// answers waits until a program listens, and reports whether it does.
func answers(t *testing.T, address string, ended <-chan error) bool {
	t.Helper()
	for deadline := time.Now().Add(bound); time.Now().Before(deadline); {
		select {
		case <-ended:
			return false
		case <-time.After(10 * time.Millisecond):
		}
		if connection, err := net.Dial("tcp", address); err == nil {
			_ = connection.Close()
			return true
		}
	}
	t.Fatalf("nothing listens on %s within %v", address, bound)
	return false
}
