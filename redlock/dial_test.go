package redlock_test

import (
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/caddy-redlock/caddy-redlock/redlock"
)

func TestDialNames(t *testing.T) {
	for url, name := range map[string]string{
		"redis://10.0.0.1":                          "redis://10.0.0.1:6379",
		"redis://user:secret@10.0.0.1:7000/2":       "redis://10.0.0.1:7000",
		"redis://[::1]:7000":                        "redis://[::1]:7000",
		"rediss://:secret@redis.example":            "rediss://redis.example:6379",
		"unix://user:secret@/run/redis/redis.sock":  "unix:///run/redis/redis.sock",
		"unix:///run/redis/redis.sock?db=2":         "unix:///run/redis/redis.sock",
		"memory://":                                 "memory://",
		"memory://second":                           "memory://second",
		"redis://10.0.0.1?read_timeout=1s&db=1":     "redis://10.0.0.1:6379",
		"redis://user:pass%40word@10.0.0.1:6379/15": "redis://10.0.0.1:6379",
	} {
		masters, err := redlock.Dial(url)
		if err != nil {
			t.Errorf("%s: %v", url, err)
		} else if got := masters[0].String(); got != name {
			t.Errorf("%s is called %q, want %q", url, got, name)
		}
	}
}

func TestDialErrors(t *testing.T) {
	for _, url := range []string{
		"",
		"10.0.0.1:6379",
		"http://user:secret@10.0.0.1",
		"redis://user:secret@10.0.0.1:port",
		"redis://user:sec%ret@10.0.0.1",
		"redis://user:secret@10.0.0.1/database",
		"redis://user:secret@10.0.0.1/1/2",
		"redis://user:secret@10.0.0.1?no_such_option=1",
		"redis://user:secret@10.0.0.1?password=secret",
		"memory://user:secret@name",
		"memory://name/path",
		"unix://",
	} {
		_, err := redlock.Dial("memory://", url, "memory://third")
		switch {
		case err == nil:
			t.Errorf("%q is taken", url)
		case !strings.Contains(err.Error(), "master 2 of 3"):
			t.Errorf("%q: error %q doesn't tell the position", url, err)
		case strings.Contains(err.Error(), "secret"), strings.Contains(err.Error(), "sec%ret"):
			t.Errorf("%q: error %q tells the password", url, err)
		}
	}
}

func TestNewMasterRefusesOtherClients(t *testing.T) {
	ring := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"one": "127.0.0.1:1"}})
	defer func() { _ = ring.Close() }()
	if _, err := redlock.NewMaster(ring); err == nil || !strings.Contains(err.Error(), "redis.Ring") {
		t.Errorf("a Ring as master: %v", err)
	}
}

func TestNoMasters(t *testing.T) {
	if _, err := redlock.New(nil); err == nil || !strings.Contains(err.Error(), "no masters") {
		t.Errorf("New without masters: %v", err)
	}
}

func TestDuplicatesAreRefused(t *testing.T) {
	for want, urls := range map[string][]string{
		"1 and 3 are both":     {"redis://10.0.0.1", "redis://10.0.0.2", "redis://10.0.0.1:6379"},
		"are both redis://a:1": {"redis://a:1/0", "redis://user:secret@a:1/1"}, // another database is no other server
		"are both memory://":   {"memory://", "memory://"},
	} {
		_, dialErr := redlock.Dial(urls...)
		var masters []redlock.Master
		for _, url := range urls {
			masters = append(masters, dialOne(t, url))
		}
		_, newErr := redlock.New(masters)
		for by, err := range map[string]error{"Dial": dialErr, "New": newErr} {
			if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "secret") {
				t.Errorf("%s on %q: %v, want %q", by, urls, err, want)
			}
		}
	}
}
