package heartbeat

import (
	"encoding/json"
	"iter"
	"strings"
)

// Turn is a call that holds a key, or waits for it, as its process tells it to the masters with its beats.
type Turn struct {
	Label string `json:"l,omitempty"`
	Since int64  `json:"s"` // in milliseconds, by the clock of its process
	Fence uint64 `json:"f,omitempty"`
	Wait  int    `json:"w,omitempty"` // calls of that process that wait for the key
	*Request
	Line []Turn `json:"q,omitempty"` // the calls of Wait that are behind this one, the next first
}

// Request is the request for which a call is. Its fields are those of redlock.Request.
type Request struct {
	Method   string `json:"m,omitempty"`
	Path     string `json:"p,omitempty"`
	ID       string `json:"i,omitempty"`
	TraceID  string `json:"t,omitempty"`
	Client   string `json:"c,omitempty"`
	Delivery string `json:"d,omitempty"`
}

const (
	maxTurns = 16 << 10 // bytes of a beat; one turn takes a quarter at most
	maxLine  = 20
)

// TurnLines returns the lines of a beat about turns, each with the hash of its key, as far as there is room. Long lines of calls are shortened.
func TurnLines(turns iter.Seq2[string, Turn]) string {
	var lines strings.Builder
	for hash, t := range turns {
		t.Line = t.Line[:min(len(t.Line), maxLine)]
		text, _ := json.Marshal(t) // strings and numbers always encode
		for ; len(text) > maxTurns/4 && len(t.Line) > 0; text, _ = json.Marshal(t) {
			t.Line = t.Line[:len(t.Line)/2]
		}
		if lines.Len()+len(text) > maxTurns {
			break
		}
		lines.WriteString(hash + " ")
		lines.Write(text)
		lines.WriteByte('\n')
	}
	return lines.String()
}

// ParseTurn returns nil for a text of another version.
func ParseTurn(text string) *Turn {
	t := new(Turn)
	if json.Unmarshal([]byte(text), t) != nil {
		return nil
	}
	return t
}
