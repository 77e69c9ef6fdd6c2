package traefik

import (
	"bufio"
	"errors"
	"io"
	"strconv"
)

// The part of the Redis serialization protocol that the commands of a lock need.

// bulks returns the strings of a command.
func bulks(words ...string) string {
	text := ""
	for _, word := range words {
		text += "$" + strconv.Itoa(len(word)) + "\r\n" + word + "\r\n"
	}
	return text
}

// plainCommand returns a whole command.
func plainCommand(words ...string) string {
	return "*" + strconv.Itoa(len(words)) + "\r\n" + bulks(words...)
}

// answer is one value that a server has sent.
type answer struct {
	kind  byte // as in the protocol; '_' for all nulls
	n     int64
	text  string // of strings and errors
	items []item // of an array
}

// item is one value of an array.
type item struct {
	kind byte
	n    int64
	text string
}

const (
	maxText  = 64 << 10 // bytes of a string: tokens and errors are short, and there are few sets of masters
	maxItems = 16       // of an array
)

var errProtocol = errors.New("the answer is not of Redis's protocol: is this a Redis server, and do both sides use TLS, or neither?")

// readAnswer reads one value. After an error nothing more can be read.
func readAnswer(r *bufio.Reader) (*answer, error) {
	a := &answer{}
	first, err := readItem(r)
	if err != nil {
		return a, err
	}
	a.kind = first.kind
	a.n = first.n
	a.text = first.text
	if a.kind != '*' {
		return a, nil
	}
	if a.n < 0 || a.n > maxItems {
		return a, errProtocol
	}
	for i := int64(0); i < a.n; i++ {
		it, err := readItem(r)
		if err != nil {
			return a, err
		}
		if it.kind == '*' {
			return a, errProtocol
		}
		a.items = append(a.items, it)
	}
	return a, nil
}

// readItem reads a value; of an array it reads only the length.
func readItem(r *bufio.Reader) (item, error) {
	it := item{}
	raw, err := r.ReadSlice('\n')
	if err != nil {
		return it, err
	}
	line := string(raw)
	if len(line) < 3 || line[len(line)-2] != '\r' {
		return it, errProtocol
	}
	it.kind = line[0]
	line = line[1 : len(line)-2]
	switch it.kind {
	case '+', '-':
		it.text = line
		return it, nil
	case '_':
		return it, nil
	case ':', '$', '*':
	default:
		return it, errProtocol
	}
	it.n, err = strconv.ParseInt(line, 10, 64)
	if err != nil {
		return it, errProtocol
	}
	if it.kind == ':' {
		return it, nil
	}
	if it.n == -1 {
		it.kind = '_'
		return it, nil
	}
	if it.kind == '*' {
		return it, nil
	}
	if it.n < 0 || it.n > maxText {
		return it, errProtocol
	}
	text := make([]byte, it.n+2)
	_, err = io.ReadFull(r, text)
	if err != nil {
		return it, err
	}
	it.text = string(text[:it.n])
	return it, nil
}

// kindsOf returns the kind of an answer and, for an array, those of its values, such as "*::$".
func kindsOf(a *answer) string {
	if a.kind != '*' {
		return string([]byte{a.kind})
	}
	kinds := make([]byte, 0, len(a.items))
	for i := 0; i < len(a.items); i++ {
		kinds = append(kinds, a.items[i].kind)
	}
	return "*" + string(kinds)
}

// serverTime parses the answer to TIME, in microseconds since 1970. It returns 0 for other answers.
func serverTime(a *answer) int64 {
	if kindsOf(a) != "*$$" {
		return 0
	}
	seconds, errS := strconv.ParseInt(a.items[0].text, 10, 64)
	micros, errM := strconv.ParseInt(a.items[1].text, 10, 64)
	if errS != nil || errM != nil {
		return 0
	}
	return seconds*1000000 + micros
}
