package memory

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
)

// knownSets is the memory master's register command.
type knownSets struct {
	uses map[string]*use // by the text of the set
	mark int64           // the latest time that the clock has shown, in microseconds

	processes map[string]int64 // when each is forgotten, in microseconds, by its ID and name
}

// use is a set of masters that processes have, and since when and until when it was seen, in microseconds.
type use struct {
	text        string
	since, seen int64
}

func (k *knownSets) register(cmd *protocol.Command, now int64) protocol.Reply {
	ends := func(u *use) int64 {
		life, _, _ := strings.Cut(u.text, " ")
		ms, _ := strconv.ParseInt(life, 10, 64)
		return u.seen + ms*1000
	}
	if k.uses == nil {
		k.uses = make(map[string]*use)
	}
	if u := k.uses[cmd.Token]; u != nil || len(k.uses)+int(min(k.mark, 1)) < protocol.MaxSets {
		if u == nil || ends(u) < now {
			u = &use{text: cmd.Token, since: now}
			k.uses[cmd.Token] = u
		}
		u.seen = now
	}
	var lines []string
	for text, u := range k.uses {
		if ends(u) < now {
			delete(k.uses, text)
		} else {
			lines = append(lines, fmt.Sprintf("%d %d %s", u.since, u.seen, u.text))
		}
	}
	if cmd.Process != "" {
		if k.processes == nil {
			k.processes = make(map[string]int64)
		}
		k.processes[cmd.Process] = ends(&use{text: cmd.Token, seen: now})
		maps.DeleteFunc(k.processes, func(_ string, ends int64) bool { return ends <= now })
	}
	if cmd.Ticket > 0 {
		k.mark = max(k.mark, cmd.Ticket)
	}
	return protocol.Reply{Time: now, Mark: k.mark, Lines: strings.Join(lines, "\n")}
}

// names is the command that finds the names of processes.
func (k *knownSets) names(cmd *protocol.Command, now int64) protocol.Reply {
	var lines []string
	for process, ends := range k.processes {
		if id, _, _ := strings.Cut(process, " "); ends > now && slices.Contains(strings.Fields(cmd.Token), id) {
			lines = append(lines, process)
		}
	}
	return protocol.Reply{Lines: strings.Join(lines, "\n")}
}
