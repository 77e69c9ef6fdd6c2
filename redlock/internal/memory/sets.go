package memory

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
)

// Sets is the memory master's register command: which sets of masters processes have.
type Sets struct {
	Uses map[string]Use // by the text of the set
	Born int64          // since when sets are remembered, in microseconds; 0 before the first
	Mark int64          // the latest time that the clock has shown, in microseconds

	Processes map[string]Process // by its ID and name
}

// Use says since when a set of masters is in use, and when it was seen last, in microseconds; and by the registration of which process.
type Use struct {
	Since, Seen int64
	By          string
}

// Process says when a process was seen last, in microseconds, and what it has said about itself with its set.
type Process struct {
	Seen       int64
	About, Set string
	Turns      string
}

// ends returns when a set is forgotten that was seen then.
func ends(set string, seen int64) int64 {
	life, _, _ := strings.Cut(set, " ")
	ms, _ := strconv.ParseInt(life, 10, 64)
	return seen + ms*1000
}

// Register is OpRegister.
func (s *Sets) Register(cmd *protocol.Command, now int64) protocol.Reply {
	if s.Born == 0 {
		s.Born, s.Uses, s.Processes = now, make(map[string]Use), make(map[string]Process)
	}
	if cmd.Former != cmd.Token {
		delete(s.Uses, cmd.Former)
	}
	if u, known := s.Uses[cmd.Token]; known || len(s.Uses)+int(min(s.Mark, 1)) < protocol.MaxSets {
		if !known || ends(cmd.Token, u.Seen) < now {
			u.Since = now
		}
		if _, name, known := strings.Cut(cmd.Process, " "); known {
			u.By = name
		}
		s.Uses[cmd.Token] = Use{Since: min(u.Since, now-cmd.Age.Microseconds()), Seen: now, By: u.By}
	}
	var lines, others []string
	for text, u := range s.Uses {
		if ends(text, u.Seen) < now {
			delete(s.Uses, text)
			continue
		}
		lines = append(lines, fmt.Sprintf("%d %d %s", u.Since, u.Seen, text))
		if text != cmd.Token && u.By != "" {
			others = append(others, u.By+" "+text)
		}
	}
	if cmd.Process != "" {
		s.Processes[cmd.Process] = Process{now, cmd.About, cmd.Token, cmd.Turns}
		maps.DeleteFunc(s.Processes, func(_ string, p Process) bool { return ends(p.Set, p.Seen) <= now })
	}
	s.Mark = max(s.Mark, cmd.Ticket)
	return protocol.Reply{Time: now, Mark: s.Mark, Born: s.Born, Lines: strings.Join(lines, "\n"), Others: strings.Join(others, "\n")}
}

// names is the command that finds processes.
func (s *Sets) names(cmd *protocol.Command, now int64) protocol.Reply {
	var lines, turns []string
	for process, p := range s.Processes {
		if id, _, _ := strings.Cut(process, " "); ends(p.Set, p.Seen) > now && (cmd.Token == "" || slices.Contains(strings.Fields(cmd.Token), id)) {
			lines = append(lines, fmt.Sprintf("%s %d %s %s", process, (now-p.Seen)/1000, p.About, p.Set))
			for line := range strings.Lines(p.Turns) {
				if hash, turn, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " "); hash == cmd.Process && hash != "" {
					turns = append(turns, id+" "+turn)
				}
			}
		}
	}
	return protocol.Reply{Lines: strings.Join(lines, "\n"), Others: strings.Join(turns, "\n")}
}
