package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// observations are the lines of the Caddy module by which metrics learn of locks and requests.
var observations = []struct{ file, line, without string }{
	{"../pool.go", "redlock.WithObserver(series.Observer()),", ""},
	{"../metrics.go", "h.rule.Observer, h.hideRule = series.Rule(h.rule.Name)", "_, h.hideRule = series.Rule(h.rule.Name)"},
}

// buildCaddy builds Caddy, with or without the calls that make metrics of what it does. There is no setting for that.
func buildCaddy(binary string, observed bool) error {
	args := []string{"build", "-o", binary}
	if !observed {
		replace := make(map[string]string)
		for _, o := range observations {
			text, err := os.ReadFile(o.file)
			if err != nil {
				return err
			}
			if strings.Count(string(text), o.line) != 1 {
				return fmt.Errorf("%s doesn't have the line %q once", o.file, o.line)
			}
			path, err := filepath.Abs(o.file)
			if err != nil {
				return err
			}
			replace[path] = binary + "-" + filepath.Base(o.file)
			if err := os.WriteFile(replace[path], []byte(strings.Replace(string(text), o.line, o.without, 1)), 0o644); err != nil {
				return err
			}
		}
		overlay, _ := json.Marshal(map[string]any{"Replace": replace})
		if err := os.WriteFile(binary+"-overlay.json", overlay, 0o644); err != nil {
			return err
		}
		args = append(args, "-overlay", binary+"-overlay.json")
	}
	build := exec.Command("go", append(args, "./barelock")...)
	build.Stderr = os.Stderr
	if err := build.Run(); err != nil {
		return fmt.Errorf("build of Caddy: %w", err)
	}
	return nil
}
