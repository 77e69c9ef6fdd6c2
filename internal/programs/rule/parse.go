// Package rule reads the settings of a rule of package middleware, and the durations in them, as configurations write them.
package rule

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/dustin/go-humanize"

	"github.com/caddy-redlock/caddy-redlock/middleware"
)

// Parse reads settings as users of gateways write them. Names are compared without case, underscores and hyphens: onMissingKey is on_missing_key. The
// value of a label is always a text, so Parse also accepts the texts that Set reads, and a list in JSON as a text that begins with [. Errors begin
// with the name of the setting, and show no secret.
func Parse(text []byte) (rule middleware.Rule, err error) {
	err = parseInto(reflect.ValueOf(&rule), text, "")
	return rule, err
}

var separators = strings.NewReplacer("_", "", "-", "")

// plain is a name as names are compared.
func plain(name string) string { return strings.ToLower(separators.Replace(name)) }

// Settings returns the fields of a struct, given by its address, that a configuration may set, by their names in it.
func Settings(of any) map[string]reflect.Value { return settings(reflect.ValueOf(of)) }

func settings(of reflect.Value) map[string]reflect.Value {
	fields := make(map[string]reflect.Value)
	for field, value := range of.Elem().Fields() {
		if name, _, _ := strings.Cut(field.Tag.Get("json"), ","); name != "" && name != "-" {
			fields[name] = value
		}
	}
	return fields
}

func parseInto(into reflect.Value, text []byte, prefix string) error {
	var given map[string]json.RawMessage
	if err := json.Unmarshal(text, &given); err != nil {
		if prefix != "" {
			prefix = strings.TrimSuffix(prefix, ".") + ": "
		}
		return errors.New(prefix + "want a JSON object of settings")
	}
	fields, known := settings(into), make(map[string]string)
	for name := range fields {
		known[plain(name)] = name
	}
	seen := make(map[string]string)
	for _, written := range slices.Sorted(maps.Keys(given)) {
		name, ok := known[plain(written)]
		if !ok {
			return fmt.Errorf("%s%s: unknown; want one of %s", prefix, written, strings.Join(slices.Sorted(maps.Keys(fields)), ", "))
		}
		if other, ok := seen[name]; ok {
			return fmt.Errorf("%s%s: is %s, too; want one of them", prefix, written, other)
		}
		seen[name] = written
		if err := parseValue(fields[name], given[written], prefix+name); err != nil {
			return err
		}
	}
	return nil
}

// parseValue reads the value of one setting.
func parseValue(into reflect.Value, value json.RawMessage, name string) error {
	if bytes.Equal(value, []byte("null")) {
		return nil
	}
	if into.Kind() == reflect.Slice && into.Type().Elem().Kind() == reflect.Struct {
		return parseStructs(into, value, name)
	}
	var text string
	isList := into.Kind() == reflect.Slice
	if json.Unmarshal(value, &text) == nil {
		if !isList || !strings.HasPrefix(text, "[") {
			return Set(into, name, text)
		}
		value = []byte(text)
	}
	var texts []string
	if isList && json.Unmarshal(value, &texts) == nil && len(texts) > 0 {
		return Set(into, name, texts...)
	}
	if isDuration(into.Type()) {
		if string(value) == "0" {
			return Set(into, name, "0")
		}
		return fmt.Errorf("%s: want %s, with its unit and in quotes", name, wanted(into.Type()))
	}
	if err := json.Unmarshal(value, into.Addr().Interface()); err != nil {
		return fmt.Errorf("%s: want %s", name, wanted(into.Type()))
	}
	return nil
}

// parseStructs reads a list of settings that have settings of their own. If there is only one, it may stand without a list.
func parseStructs(into reflect.Value, value json.RawMessage, name string) error {
	var text string
	if json.Unmarshal(value, &text) == nil {
		value = json.RawMessage(text)
	}
	items := []json.RawMessage{value}
	if bytes.HasPrefix(value, []byte("[")) && json.Unmarshal(value, &items) != nil {
		return fmt.Errorf("%s: want a JSON object of settings, or a list of such", name)
	}
	list := reflect.MakeSlice(into.Type(), len(items), len(items))
	for i, item := range items {
		place := name
		if len(items) > 1 {
			place = fmt.Sprintf("%s[%d]", name, i)
		}
		if err := parseInto(list.Index(i).Addr(), item, place+"."); err != nil {
			return err
		}
	}
	into.Set(list)
	return nil
}

// Set reads a setting from the texts behind its name. No text turns a switch on. The durations off and 0, with any unit, mean not at all,
// not even what a preset has.
func Set(into reflect.Value, name string, texts ...string) error {
	if into.Kind() == reflect.Pointer {
		into.Set(reflect.New(into.Type().Elem()))
		into = into.Elem()
	}
	switch kind := into.Kind(); {
	case kind == reflect.Slice && len(texts) == 0:
		return fmt.Errorf("%s: want at least one value", name)
	case kind == reflect.Slice:
		list := reflect.MakeSlice(into.Type(), len(texts), len(texts))
		for i, text := range texts {
			if err := Set(list.Index(i), name, text); err != nil {
				return err
			}
		}
		into.Set(list)
		return nil
	case kind == reflect.Bool && len(texts) == 0:
		texts = []string{"on"}
	case len(texts) != 1:
		return fmt.Errorf("%s: want exactly one value: %s", name, wanted(into.Type()))
	}
	if !setText(into, texts[0]) {
		return fmt.Errorf("%s %q: want %s", name, texts[0], wanted(into.Type()))
	}
	return nil
}

// setText reads a value that is neither a list nor secret. It reports false if the text is wrong.
func setText(into reflect.Value, text string) bool {
	switch {
	case isDuration(into.Type()):
		if text == "off" {
			text = "0"
		}
		d, err := ParseDuration(text)
		if err != nil || d < 0 {
			return false
		}
		into.SetInt(cmp.Or(int64(d), -1))
	case into.Kind() == reflect.String:
		into.SetString(text)
	case into.Kind() == reflect.Bool:
		on, err := strconv.ParseBool(text)
		if into.SetBool(on || text == "on"); err != nil && text != "on" && text != "off" {
			return false
		}
	case into.Kind() == reflect.Int:
		n, err := strconv.Atoi(text)
		into.SetInt(int64(n))
		return err == nil && n > 0
	default:
		size, err := humanize.ParseBytes(text)
		into.SetInt(int64(min(size, math.MaxInt32)))
		return err == nil && 0 < size && size <= math.MaxInt32
	}
	return true
}

// isDuration reports whether a type is a duration, of package time or of Caddy.
func isDuration(t reflect.Type) bool { return t.Name() == "Duration" }

// wanted returns what a setting of this type should be.
func wanted(t reflect.Type) string {
	switch {
	case isDuration(t):
		return "a duration above 0 such as 500ms, 2s or 1m"
	case t.Kind() == reflect.Pointer:
		return wanted(t.Elem())
	case t.Kind() == reflect.Slice && t.Elem().Kind() == reflect.Int:
		return "a number from 1, or a list of such"
	case t.Kind() == reflect.Slice:
		return "a list of texts"
	case t.Kind() == reflect.Bool:
		return "on, off or nothing, which means on"
	case t.Kind() == reflect.Int:
		return "a number from 1"
	case t.Kind() == reflect.Int64:
		return "a size from 1B to less than 2GiB, such as 64KiB or 1MiB"
	}
	return "a text"
}
