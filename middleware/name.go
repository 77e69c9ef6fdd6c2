package middleware

import (
	"fmt"
	"reflect"
	"runtime"
	"strings"
	"unicode"
	"unicode/utf8"
)

// maxName is how long the name of a rule may be, in bytes: it is in each line of the access log and in each series of metrics.
const maxName = 128

// checkName returns an error unless a name fits into logs and metrics.
func checkName(name string) error {
	switch {
	case len(name) > maxName:
		return fmt.Errorf("name %.20q…: longer than %d bytes", name, maxName)
	case !utf8.ValidString(name) || strings.ContainsFunc(name, isUnprintable):
		return fmt.Errorf("name %q: has characters that can't be printed", name)
	case strings.TrimSpace(name) != name:
		return fmt.Errorf("name %q: must not begin or end with a space", name)
	}
	return nil
}

func isUnprintable(r rune) bool { return !unicode.IsPrint(r) }

// defaultName returns the name of a rule that is given none: its key templates as they are written, and its preset. It is cut
// where it would be longer than a name may be.
func defaultName(templates []string, preset string) string {
	name := strings.Join(templates, " ")
	switch {
	case preset != "" && name != "":
		name += " (preset " + preset + ")"
	case preset != "":
		name = "preset " + preset
	}
	name = strings.Map(func(r rune) rune {
		if isUnprintable(r) {
			return unicode.ReplacementChar
		}
		return r
	}, strings.TrimSpace(name))
	const more = "…"
	if len(name) > maxName {
		end := maxName - len(more)
		for !utf8.RuneStart(name[end]) {
			end--
		}
		name = strings.TrimRight(name[:end], " ") + more
	}
	return name
}

// nameOfFunc returns the default name of a rule whose keys come from a function: that function's, such as main.orderKey.
func nameOfFunc(key KeyFunc) string {
	name := runtime.FuncForPC(reflect.ValueOf(key).Pointer()).Name()
	return defaultName([]string{name[strings.LastIndexByte(name, '/')+1:]}, "")
}
