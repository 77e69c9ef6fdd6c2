//go:build unix

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/caddy-redlock/caddy-redlock/internal/tests/redistest"
)

// example returns a file of examples/jobs, with this program and masters.
func example(t *testing.T, servers []*redistest.Server, name string) string {
	t.Helper()
	text, err := os.ReadFile("../../examples/jobs/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return strings.ReplaceAll(string(text), "redis://10.0.0.1:6379,redis://10.0.0.2:6379,redis://10.0.0.3:6379", strings.Join(redistest.URLs(servers), ","))
}

// bin returns a folder for the PATH that has redlock and this script.
func bin(t *testing.T, name, script string) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+script+"\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(program, filepath.Join(dir, "redlock")); err != nil {
		t.Fatal(err)
	}
	return dir
}

// onMachine returns a command as a machine of this name runs it.
func onMachine(servers []*redistest.Server, machine, path string, args ...string) *exec.Cmd {
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Env = append(redlockRun(servers).Env, "REDLOCK_INSTANCE="+machine, "PATH="+path+":"+os.Getenv("PATH"))
	return cmd
}

// TestScheduleExamples runs what cron, systemd and Kubernetes would run at one tick, on two machines each: the report is made once, and
// nothing is printed, of which cron would send a message.
func TestScheduleExamples(t *testing.T) {
	t.Parallel()
	for name, line := range map[string]*regexp.Regexp{
		"crontab":        regexp.MustCompile(`(?m)^\*/10 \* \* \* \* (redlock run .*)$`),
		"report.service": regexp.MustCompile(`(?m)^ExecStart=/usr/bin/(redlock run .*)$`),
		"cronjob.yaml":   regexp.MustCompile(`(?m)^ +command: \[(redlock, run, .*)\]$`),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			servers := redistest.Start(t, 3)
			dir := t.TempDir()
			path := bin(t, "report", "echo ran >>"+dir+"/runs")
			found := line.FindStringSubmatch(example(t, servers, name))
			if found == nil {
				t.Fatal("it has no such line")
			}
			command := found[1]
			if name == "cronjob.yaml" {
				command = strings.NewReplacer(",", "", `"`, "").Replace(command) + " /usr/local/bin/report"
			}
			command = strings.ReplaceAll(command, "/usr/local/bin/", path+"/")
			var machines sync.WaitGroup
			for _, machine := range []string{"web1", "web2"} {
				machines.Go(func() {
					if out, err := onMachine(servers, machine, path, "sh", "-c", command).CombinedOutput(); err != nil || len(out) > 0 {
						t.Errorf("%s: %v: %s", machine, err, out)
					}
				})
			}
			machines.Wait()
			if runs := contents(filepath.Join(dir, "runs")); runs != "ran" {
				t.Errorf("runs: %q", runs)
			}
		})
	}
}

// TestJobsDocument runs the commands that docs/jobs.md begins with.
func TestJobsDocument(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/jobs.md")
	if err != nil {
		t.Fatal(err)
	}
	commands := regexp.MustCompile("(?s)\n```sh\n(.*?)```\n").FindStringSubmatch(string(text))
	if commands == nil {
		t.Fatal("docs/jobs.md has no commands")
	}
	servers := redistest.Start(t, 3)
	path := bin(t, "send-invoices", "echo sent")
	if err := os.WriteFile(filepath.Join(path, "report.sh"), []byte("#!/bin/sh\necho reported\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	script := strings.ReplaceAll(commands[1], "redis://10.0.0.1:6379,redis://10.0.0.2:6379,redis://10.0.0.3:6379", strings.Join(redistest.URLs(servers), ","))
	cmd := onMachine(servers, "web1", path, "sh", "-euc", script)
	cmd.Env = slices.DeleteFunc(cmd.Env, func(variable string) bool { return strings.HasPrefix(variable, "REDLOCK_MASTERS=") })
	cmd.Dir = path
	if out, err := cmd.CombinedOutput(); err != nil || string(out) != "sent\nreported\n" {
		t.Errorf("%v: %s", err, out)
	}
}

// TestSystemdExample has systemd read the units.
func TestSystemdExample(t *testing.T) {
	t.Parallel()
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Skip(err)
	}
	dir := t.TempDir()
	var files []string
	for _, name := range []string{"report.service", "report.timer"} {
		files = append(files, filepath.Join(dir, name))
		text := strings.ReplaceAll(example(t, nil, name), "/usr/bin/redlock", program)
		if err := os.WriteFile(files[len(files)-1], []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if out, err := exec.Command(analyze, append([]string{"verify", "--man=no"}, files...)...).CombinedOutput(); err != nil || strings.Contains(string(out), dir) {
		t.Errorf("%v: %s", err, out)
	}
}

// TestMigrationsExample starts five replicas at once: each migration is made once, and no server starts before all are.
func TestMigrationsExample(t *testing.T) {
	t.Parallel()
	servers := redistest.Start(t, 3)
	start, err := filepath.Abs("../../examples/jobs/start.sh")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	path := bin(t, "unused", "")
	for name, script := range map[string]string{
		"migrate": `for n in 1 2 3; do grep -qx $n schema || { sleep 0.1; echo $n >>schema; }; done`,
		"server":  `echo $(cat schema) >>started`,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+script+"\n"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "schema"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	var replicas sync.WaitGroup
	for range 5 {
		replicas.Go(func() {
			cmd := onMachine(servers, "replica", path, start)
			cmd.Dir = dir
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%v: %s", err, out)
			}
		})
	}
	replicas.Wait()
	if schema := contents(filepath.Join(dir, "schema")); schema != "1\n2\n3" {
		t.Errorf("migrations: %q", schema)
	}
	if started := contents(filepath.Join(dir, "started")); started != strings.TrimSpace(strings.Repeat("1 2 3\n", 5)) {
		t.Errorf("servers started with %q", started)
	}
}
