// Command recording runs what README says to try first, and writes docs/images/try.svg: a terminal in which each line appears when it
// did. make images runs it, in the root of the repository.
package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"html"
	"io"
	"log"
	"net"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"time"
)

const (
	file    = "docs/images/try.svg"
	typing  = 1500 * time.Millisecond // for a command
	looking = 5 * time.Second         // at the end, before it begins again
)

// line is a line of the terminal, and when it appears.
type line struct {
	text    string
	command bool
	at      time.Duration
}

func main() {
	log.SetFlags(0)
	if err := record(); err != nil {
		log.Fatal(err)
	}
}

func record() error {
	readme, err := os.ReadFile("README.md")
	if err != nil {
		return err
	}
	block := regexp.MustCompile("(?ms)^```sh\n(curl .*?)^```$").FindSubmatch(readme)
	if block == nil {
		return errors.New("README.md has no commands")
	}
	var lines []line
	var script strings.Builder
	for text := range strings.Lines(string(block[1])) {
		if strings.HasPrefix(text, "curl ") {
			script.WriteString(text)
			lines = append(lines, line{"$ " + strings.TrimSuffix(text, "\n"), true, time.Duration(len(lines)) * typing})
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	caddy := exec.CommandContext(ctx, "bin/caddy", "run", "--config", "Caddyfile.example")
	caddy.Cancel = func() error { return caddy.Process.Signal(os.Interrupt) }
	if err := caddy.Start(); err != nil {
		return err
	}
	defer func() { cancel(); _ = caddy.Wait() }()
	for _, port := range []string{"8080", "8081"} {
		if err := await(port); err != nil {
			return err
		}
	}
	responses, err := run(script.String(), time.Duration(len(lines))*typing)
	if err != nil {
		return err
	}
	return os.WriteFile(file, []byte(picture(append(lines, responses...))), 0o644)
}

// await waits until somebody listens on a port of this machine.
func await(port string) error {
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		connection, err := net.Dial("tcp", "127.0.0.1:"+port)
		if err == nil {
			return connection.Close()
		}
		if time.Now().After(end) {
			return err
		}
	}
}

// run runs commands of the shell, and returns what they print, the first of it at the given time.
func run(script string, at time.Duration) (lines []line, err error) {
	shell := exec.Command("sh", "-c", script+"wait\n")
	out, err := shell.StdoutPipe()
	if err != nil {
		return nil, err
	}
	start := time.Now()
	if err := shell.Start(); err != nil {
		return nil, err
	}
	for reader := bufio.NewReader(out); ; {
		text, err := reader.ReadString('\n')
		if text != "" {
			lines = append(lines, line{strings.TrimSuffix(text, "\n"), false, at + time.Since(start).Round(100*time.Millisecond)})
		}
		if err != nil {
			return lines, errors.Join(ignoreEOF(err), shell.Wait())
		}
	}
}

func ignoreEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// picture draws the lines in a terminal that shows them again and again; to those who want no motion, all of them.
func picture(lines []line) string {
	const size, height, margin = 14, 22, 16
	longest, whole := 0, lines[len(lines)-1].at+looking
	for _, l := range lines {
		longest = max(longest, len(l.text))
	}
	width, tall := 2*margin+longest*size*61/100, 2*margin+len(lines)*height
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%[1]d" height="%[2]d" role="img" aria-labelledby="title" font-family="ui-monospace, Menlo, Consolas, monospace" font-size="%d">
  <title id="title">A terminal: two payments of one order at once, of which one is refused and the other done after 3 seconds</title>
  <style>
    rect { fill: #0d1117; } text { fill: #e6edf3; white-space: pre; } .command { fill: #7ee787; }
    @media (prefers-reduced-motion: no-preference) { text { animation-duration: %.1fs; animation-iteration-count: infinite; animation-timing-function: step-end; } }
`, width, tall, size, whole.Seconds())
	for i, l := range lines {
		if l.at > 0 {
			fmt.Fprintf(&b, "    @keyframes l%d { 0%% { opacity: 0; } %.1f%% { opacity: 1; } } .l%[1]d { animation-name: l%[1]d; }\n", i, 100*l.at.Seconds()/whole.Seconds())
		}
	}
	fmt.Fprintf(&b, "  </style>\n  <rect width=\"%d\" height=\"%d\" rx=\"8\"/>\n", width, tall)
	for i, l := range lines {
		class := fmt.Sprintf("l%d", i)
		if l.command {
			class += " command"
		}
		fmt.Fprintf(&b, "  <text class=\"%s\" x=\"%d\" y=\"%d\">%s</text>\n", class, margin, margin+size+i*height, html.EscapeString(l.text))
	}
	b.WriteString("</svg>\n")
	return b.String()
}
