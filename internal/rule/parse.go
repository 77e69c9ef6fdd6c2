// Package rule reads the settings of a rule of package middleware, and the durations in them, as configurations write them.
package rule

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dustin/go-humanize"

	"github.com/caddy-redlock/caddy-redlock/middleware"
)

// Parse reads settings as users of gateways write them. Names are compared without case, underscores and hyphens: onMissingKey is
// on_missing_key. As labels have only texts, "429" is a number, "true" a switch, "1MiB" a size, and a text a list of one; one that
// begins with [ is a list in JSON. The duration "off" means not even what the preset has. Errors begin with the name of the setting, and
// show no secret.
func Parse(text []byte) (rule middleware.Rule, err error) {
	err = parseInto(reflect.ValueOf(&rule).Elem(), text, "")
	return rule, err
}

// plain is a name as names are compared.
func plain(name string) string {
	return strings.ToLower(strings.NewReplacer("_", "", "-", "").Replace(name))
}

func parseInto(into reflect.Value, text []byte, prefix string) error {
	var given map[string]json.RawMessage
	if err := json.Unmarshal(text, &given); err != nil {
		return errors.New(cutColon(prefix) + "want a JSON object of settings")
	}
	fields := make(map[string]int) // by plain name
	for i := range into.NumField() {
		if name := jsonName(into, i); name != "-" { // which is for Go alone
			fields[plain(name)] = i
		}
	}
	seen := make(map[int]string)
	for _, name := range slices.Sorted(maps.Keys(given)) {
		i, ok := fields[plain(name)]
		if !ok {
			return fmt.Errorf("%s%s: unknown; want one of %s", prefix, name, strings.Join(jsonNames(into), ", "))
		}
		if other, ok := seen[i]; ok {
			return fmt.Errorf("%s%s: is %s, too; want one of them", prefix, name, other)
		}
		seen[i] = name
		if err := parseValue(into.Field(i), given[name], prefix+jsonName(into, i)); err != nil {
			return err
		}
	}
	return nil
}

func cutColon(prefix string) string {
	if prefix == "" {
		return ""
	}
	return strings.TrimSuffix(prefix, ".") + ": "
}

func jsonName(of reflect.Value, i int) string {
	name, _, _ := strings.Cut(of.Type().Field(i).Tag.Get("json"), ",")
	return name
}

func jsonNames(of reflect.Value) (names []string) {
	for i := range of.NumField() {
		if name := jsonName(of, i); name != "-" {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// parseValue reads the value of one setting.
func parseValue(into reflect.Value, value json.RawMessage, name string) error {
	if bytes.Equal(value, []byte("null")) {
		return nil
	}
	if into.Kind() == reflect.Pointer {
		into.Set(reflect.New(into.Type().Elem()))
		into = into.Elem()
	}
	if into.Kind() == reflect.Struct {
		return parseInto(into, value, name+".")
	}
	var text string
	isText := json.Unmarshal(value, &text) == nil
	if isText && into.Kind() != reflect.String {
		return parseText(into, text, name)
	}
	if err := json.Unmarshal(value, into.Addr().Interface()); err != nil {
		return fmt.Errorf("%s: %w", name, wanted(into))
	}
	return nil
}

// parseText reads a setting that isn't a text from a text.
func parseText(into reflect.Value, text, name string) (err error) {
	switch into.Interface().(type) {
	case time.Duration:
		d := Duration(-1)
		if text != "off" {
			if d, err = ParseDuration(text); err != nil {
				return fmt.Errorf("%s %w", name, err)
			}
		}
		into.SetInt(int64(d))
		return nil
	case []string:
		list := []string{text}
		if strings.HasPrefix(text, "[") {
			err = json.Unmarshal([]byte(text), &list)
		}
		into.Set(reflect.ValueOf(list))
	case bool:
		var on bool
		on, err = strconv.ParseBool(text)
		into.SetBool(on)
	case int:
		var n int
		n, err = strconv.Atoi(text)
		into.SetInt(int64(n))
	case int64:
		var size uint64
		size, err = humanize.ParseBytes(text)
		into.SetInt(int64(min(size, 1<<40)))
	}
	if err != nil {
		return fmt.Errorf("%s: %w", name, wanted(into))
	}
	return nil
}

// wanted returns what a setting should be. It doesn't show what it is, which may be a secret.
func wanted(into reflect.Value) error {
	switch into.Interface().(type) {
	case time.Duration:
		return errors.New("want a duration such as 500ms, 2s or 1m")
	case []string:
		return errors.New("want a list of texts")
	case bool:
		return errors.New("want true or false")
	case int:
		return errors.New("want a whole number")
	case int64:
		return errors.New("want a number of bytes, or a size such as 1MiB")
	}
	return errors.New("want a text")
}
