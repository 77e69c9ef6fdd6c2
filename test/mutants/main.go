// Mutants tries the wrong versions of the code in mutants.txt, or those whose names match the argument, and says which test finds each:
//
//	go run ./test/mutants 'slots|pace'
//
// It is run at the root of the repository, whose files it doesn't touch: the compiler reads others in their place (go help build, -overlay).
// These have all mutants, each as a second version of a function, so that a package is compiled once; MUTANT says which one runs.
package main

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

//go:embed mutants.txt
var list string

// mutant is a wrong version of the code: a paragraph of mutants.txt.
type mutant struct {
	name       string
	edits      []edit
	tests      [][2]string // packages and patterns; the first that fails has found it
	equivalent string      // why no test can find it; empty if one must
}

// edit replaces text that a file has once.
type edit struct{ file, old, new string }

func main() {
	names := regexp.MustCompile(strings.Join(os.Args[1:], "|"))
	mutants, err := read(list)
	check(err)
	mutants = slices.DeleteFunc(mutants, func(m *mutant) bool { return !names.MatchString(m.name) })
	folder, err := os.MkdirTemp("", "mutants")
	check(err)
	defer os.RemoveAll(folder)
	check(overlay(mutants, folder))
	survive := 0
	for i, m := range mutants {
		began, said := time.Now(), m.find(fmt.Sprint(i), folder)
		if m.equivalent != "" && said == "SURVIVES" {
			said = "equivalent: " + m.equivalent
		} else if m.equivalent != "" || said == "SURVIVES" {
			survive++
		}
		fmt.Printf("%4.0f s  %-90s %s\n", time.Since(began).Seconds(), m.name, said)
	}
	if survive > 0 {
		check(fmt.Errorf("%d of %d mutants survive, or aren't equivalent: have a test find them, delete the code that isn't needed, or say in mutants.txt why", survive, len(mutants)))
	}
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		os.Exit(1)
	}
}

// read takes the list apart: a paragraph begins with a name, and has lines that begin with @ (a file), - and + (what is replaced, and by
// what), $ (a package, and a pattern of its tests) and = (why it is equivalent).
func read(list string) (mutants []*mutant, err error) {
	for _, paragraph := range strings.Split(list, "\n\n") {
		var m *mutant
		file, kind := "", byte(0)
		for line := range strings.Lines(strings.Trim(paragraph, "\n") + "\n") {
			text, former := line[1:], kind
			switch kind = line[0]; {
			case kind == '#' || kind == '\n':
			case m == nil:
				m = &mutant{name: strings.TrimSpace(line)}
				mutants = append(mutants, m)
			case kind == '@':
				file = strings.TrimSpace(text)
			case kind == '-' && former != '-':
				m.edits = append(m.edits, edit{file: file, old: text})
			case kind == '-':
				m.edits[len(m.edits)-1].old += text
			case kind == '+' && len(m.edits) > 0:
				m.edits[len(m.edits)-1].new += text
			case kind == '$':
				where, pattern, _ := strings.Cut(strings.TrimSpace(text), " ")
				m.tests = append(m.tests, [2]string{where, pattern})
			case kind == '=':
				m.equivalent = strings.TrimSpace(text)
			default:
				return nil, fmt.Errorf("mutants.txt has the line %q, whose beginning says nothing", line)
			}
		}
	}
	for _, m := range mutants {
		for i := range m.edits { // part of a line may be replaced
			m.edits[i].old, m.edits[i].new = strings.TrimSuffix(m.edits[i].old, "\n"), strings.TrimSuffix(m.edits[i].new, "\n")
		}
	}
	return mutants, nil
}

var failure = regexp.MustCompile(`--- FAIL: (\S+)|panic: .*|fatal error: .*`)

// find says which test finds the mutant.
func (m *mutant) find(id, folder string) string {
	for _, test := range m.tests {
		binary := filepath.Join(folder, strings.ReplaceAll(test[0], "/", "_"))
		run := func(mutant string) string {
			cmd := exec.Command(binary, "-test.short", "-test.failfast", "-test.timeout", "1m", "-test.run", test[1])
			cmd.Dir, cmd.Env = test[0], append(os.Environ(), "MUTANT="+mutant)
			out, err := cmd.CombinedOutput()
			if bytes.Contains(out, []byte("no tests to run")) {
				check(fmt.Errorf("%s has no test %s", test[0], test[1]))
			}
			if found := failure.FindSubmatch(out); err != nil && found != nil {
				return strings.TrimSpace("found by " + string(found[0]))
			} else if err != nil {
				return "found: " + err.Error()
			}
			return ""
		}
		if _, err := os.Stat(binary); err != nil {
			build := exec.Command("go", "test", "-c", "-vet=off", "-overlay", filepath.Join(folder, "overlay"), "-o", binary, test[0])
			if out, err := build.CombinedOutput(); err != nil {
				check(fmt.Errorf("%s: %w\n%s", build, err, out))
			}
		}
		if !sound[test] {
			if said := run(""); said != "" {
				check(fmt.Errorf("without a mutant, %s %s: %s", test[0], test[1], said))
			}
			sound[test] = true
		}
		if said := run(id); said != "" {
			return said
		}
	}
	return "SURVIVES"
}

// sound are the tests that have passed without a mutant.
var sound = make(map[[2]string]bool)

// overlay writes the files with the mutants, and the list of what they replace.
func overlay(mutants []*mutant, folder string) error {
	replace, sources := make(map[string]string), make(map[string]*source)
	for i, m := range mutants {
		for _, e := range m.edits {
			s := sources[e.file]
			if s == nil {
				var err error
				if s, err = load(e.file); err != nil {
					return err
				}
				sources[e.file] = s
			}
			if err := s.add(fmt.Sprint(i), e); err != nil {
				return fmt.Errorf("%s: %s: %w: adapt it to what the code is now", m.name, e.file, err)
			}
		}
	}
	write := func(path, text string) error {
		path, err := filepath.Abs(path)
		if err != nil {
			return err
		}
		replace[path] = filepath.Join(folder, fmt.Sprint(len(replace), ".go"))
		return os.WriteFile(replace[path], []byte(text), 0o600)
	}
	switches := make(map[string]string)
	for file, s := range sources {
		folder := filepath.Dir(file)
		switches[folder] += s.scripts()
		if s.tree != nil {
			if err := write(file, s.text()); err != nil {
				return err
			}
		}
	}
	for folder, scripts := range switches { // the first file, whose variables are set first
		text := "package " + filepath.Base(folder) + "\nimport (\n\"os\"\n\"strings\"\n)\nvar mutantOf = os.Getenv(\"MUTANT\")\nvar _ = strings.Replace\nvar _ = func() bool {\n" + scripts + "return true\n}()\n"
		if err := write(filepath.Join(folder, "a_mutants.go"), text); err != nil {
			return err
		}
	}
	text, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(folder, "overlay"), text, 0o600)
}
