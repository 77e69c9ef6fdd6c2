package redlock_test

import (
	"testing"

	"github.com/caddy-redlock/caddy-redlock/internal/base/inside"
	"github.com/caddy-redlock/caddy-redlock/redlock"
)

func TestOverlap(t *testing.T) {
	on := func(urls ...string) []redlock.Master {
		masters, err := dial(urls...)
		if err != nil {
			t.Fatal(err)
		}
		return masters
	}
	ones := on("redis://a", "redis://b", "redis://c")
	for name, c := range map[string]struct {
		others []redlock.Master
		want   bool
	}{
		"the same":              {on("redis://c", "redis://b", "redis://a"), true},
		"a server more":         {on("redis://a", "redis://b", "redis://c", "redis://d"), true},
		"another server":        {on("redis://a", "redis://b", "redis://d"), false},
		"no majority in common": {on("redis://c", "redis://d"), false},
		"another database":      {on("redis://a/1", "redis://b/1", "redis://c/1"), false},
		"memory":                {on("memory://"), false},
	} {
		if inside.Overlap(ones, c.others) != c.want || inside.Overlap(c.others, ones) != c.want {
			t.Errorf("%s: want %v", name, c.want)
		}
	}
	if inside.Overlap(on("memory://"), on("memory://")) {
		t.Error("two masters in memory: want false")
	}
}
