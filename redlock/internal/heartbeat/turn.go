package heartbeat

import (
	"encoding/json"
	"iter"
	"strings"

	"github.com/caddy-redlock/caddy-redlock/internal/base/inside"
)

// Turn is the description of a call that holds a key, or waits for it. Its process sends it to the masters with its beats.
type Turn struct {
	Label string `json:"l,omitempty"`
	Since int64  `json:"s"` // in milliseconds since 1970, by the clock of the process
	Fence uint64 `json:"f,omitempty"`
	Wait  int    `json:"w,omitempty"` // how many calls of the process wait for the key
	*inside.Request
	Line []Turn `json:"q,omitempty"` // the waiting calls behind this one, the next one first
}

const (
	maxTurns = 16 << 10 // the most bytes of turns in a beat; one turn takes a quarter of them at most
	maxLine  = 20
)

// TurnLines returns the lines about turns in a beat, each with the hash of its key. It stops when maxTurns bytes are used, and shortens long lists of
// waiting calls.
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

// ParseTurn returns nil if the text isn't a turn of this version.
func ParseTurn(text string) *Turn {
	t := new(Turn)
	if json.Unmarshal([]byte(text), t) != nil {
		return nil
	}
	return t
}
