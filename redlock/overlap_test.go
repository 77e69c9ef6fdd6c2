package redlock_test

import (
	"testing"

	"github.com/caddy-redlock/caddy-redlock/internal/base/inside"
	"github.com/caddy-redlock/caddy-redlock/redlock"
)

func TestOverlap(t *testing.T) {
	dial := func(urls ...string) []redlock.Master {
		masters, err := redlock.Dial(urls...)
		if err != nil {
			t.Fatal(err)
		}
		return masters
	}
	ones := dial("redis://a", "redis://b", "redis://c")
	for name, c := range map[string]struct {
		others []redlock.Master
		want   bool
	}{
		"the same":              {dial("redis://c", "redis://b", "redis://a"), true},
		"a server more":         {dial("redis://a", "redis://b", "redis://c", "redis://d"), true},
		"another server":        {dial("redis://a", "redis://b", "redis://d"), false},
		"no majority in common": {dial("redis://c", "redis://d"), false},
		"another database":      {dial("redis://a/1", "redis://b/1", "redis://c/1"), false},
		"memory":                {dial("memory://"), false},
	} {
		if inside.Overlap(ones, c.others) != c.want || inside.Overlap(c.others, ones) != c.want {
			t.Errorf("%s: want %v", name, c.want)
		}
	}
	if inside.Overlap(dial("memory://"), dial("memory://")) {
		t.Error("two masters in memory: want false")
	}
}
