package rule

import (
	"fmt"
	"regexp"
	"strconv"
	"time"

	"github.com/go-json-experiment/json"
	jsonv1 "github.com/go-json-experiment/json/v1"
)

// Duration is a length of time in a configuration, in JSON a text such as "500ms", "2s" or "1d12h", or 0. Other numbers are refused: a person who
// writes 5 means seconds, and package time would read nanoseconds.
type Duration int64

var days = regexp.MustCompile(`([0-9.]+)d`)

// ParseDuration reads a text as time.ParseDuration does, and knows days, d, of 24 hours.
func ParseDuration(text string) (Duration, error) {
	inHours := days.ReplaceAllStringFunc(text, func(s string) string {
		n, err := strconv.ParseFloat(s[:len(s)-1], 64)
		if err != nil {
			return s
		}
		return strconv.FormatFloat(n*24, 'f', -1, 64) + "h"
	})
	d, err := time.ParseDuration(inHours)
	if err != nil {
		return 0, fmt.Errorf("%q: want a duration such as 500ms, 2s or 1m", text)
	}
	return Duration(d), nil
}

// Unmarshal reads JSON as package encoding/json does, with each time.Duration as a Duration. Members that are not known are an error.
func Unmarshal(text []byte, into any) error {
	durations := json.UnmarshalFunc(func(value []byte, d *time.Duration) error { return (*Duration)(d).UnmarshalJSON(value) })
	return json.Unmarshal(text, into, json.WithUnmarshalers(durations), json.RejectUnknownMembers(true))
}

// Marshal writes what Unmarshal reads.
func Marshal(from any) ([]byte, error) {
	durations := json.MarshalFunc(func(d time.Duration) ([]byte, error) { return json.Marshal(d.String()) })
	return json.Marshal(from, jsonv1.DefaultOptionsV1(), json.WithMarshalers(durations))
}

// UnmarshalJSON reads a text, or 0.
func (d *Duration) UnmarshalJSON(value []byte) error {
	if string(value) == "null" { // which changes nothing, as everywhere in JSON
		return nil
	}
	var text string
	if err := json.Unmarshal(value, &text); err != nil {
		if string(value) == "0" {
			*d = 0
			return nil
		}
		return fmt.Errorf("%s: want a duration with its unit, in quotes, such as \"5s\" or \"500ms\"", value)
	}
	var err error
	*d, err = ParseDuration(text)
	return err
}
