package redlock_test

import (
	"crypto/tls"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/caddy-redlock/caddy-redlock/internal/base/inside"
	"github.com/caddy-redlock/caddy-redlock/redlock"
)

func TestDialNames(t *testing.T) {
	for url, name := range map[string]string{
		"redis://10.0.0.1":                                          "redis://10.0.0.1:6379",
		"redis://user:secret@10.0.0.1:7000/2":                       "redis://10.0.0.1:7000",
		"valkey://10.0.0.1":                                         "redis://10.0.0.1:6379", // the same server as above, in all that is compared
		"valkeys://user:pass%40word@valkey.example":                 "rediss://valkey.example:6379",
		"redis://[::1]:7000":                                        "redis://[::1]:7000",
		"rediss://:secret@redis.example":                            "rediss://redis.example:6379",
		"unix://user:secret@/run/redis/redis.sock":                  "unix:///run/redis/redis.sock",
		"unix:///run/redis/redis.sock?db=2":                         "unix:///run/redis/redis.sock",
		"redis-cluster://u:secret@10.0.0.1":                         "redis-cluster://10.0.0.1:6379",
		"valkeys-cluster://a:1/0?db=0&addr=b:2":                     "rediss-cluster://a:1,b:2",
		"redis-cluster://[::1]?addr=[::2]:7&addr=c:8&client_name=x": "redis-cluster://[::1]:6379,[::2]:7,c:8",
		"memory://":                                 "memory://",
		"memory://second":                           "memory://second",
		"redis://10.0.0.1?client_name=x":            "redis://10.0.0.1:6379",
		"redis://user:pass%40word@10.0.0.1:6379/15": "redis://10.0.0.1:6379",
	} {
		masters, err := dial(url)
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
		"redis://user:?secret@10.0.0.1",
		"redis://user:?secret#x@10.0.0.1",
		"valkeyx://10.0.0.1",
		"unix://secret@secret/run/redis.sock",
		"memory://user:secret@name",
		"memory://name/path",
		"unix://",
		"user:secret@10.0.0.1:6379",
		"secret",
		"redis:secret",
		"memory:secret",
		"secret:123456",
		"user:secret@::1",
		"redis://user:secret@::1",
		"redis://user:secret@10.0.0.1,redis://user:secret@10.0.0.2",
		"redis://:secret@10.0.0.1,10.0.0.2",
		"redis-cluster://",
		"redis-cluster://10.0.0.1?addr=:secret@10.0.0.2:1",
		"unix-cluster:///run/redis.sock",
	} {
		_, err := dial("memory://", url, "memory://third")
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

// TestDialHints: what is wrong with a URL is said, without what may be secret.
func TestDialHints(t *testing.T) {
	for url, hint := range map[string]string{
		"unix://tmp/x": "unix:///tmp/x",
		"redis://user:secret@10.0.0.1?conect_timeout=secret&db=1": "unknown parameters: conect_timeout",
		"valkey://:secret@10.0.0.1/1?b=secret&a=secret":           "unknown parameters: a, b",
		"127.0.0.1:6379":            "write redis://127.0.0.1:6379",
		"10.0.0.1":                  "write redis://10.0.0.1:6379",
		"secret-1.example:7000":     "write redis:// in front of it",
		"":                          "its URL is empty: is a variable unset?",
		"redis:6379":                "write redis:// in front of it", // not the port 6379 of localhost
		"[::1]:7000":                "write redis://[::1]:7000",
		"::1":                       "write redis://[::1]:6379",
		"::1:6379":                  "write redis://[::1]:6379",
		"redis://::1:7000":          "brackets: write [::1]:7000",
		"rediss://2001:db8::1":      "brackets: write [2001:db8::1]:6379",
		"redis://u:secret@::1:7000": "brackets: write [::1]:7000",
		"localhost:7000":            "write redis:// in front of it",
		"10.0.0.1:6379/1":           "write redis:// in front of it",
		"user:secret@10.0.0.1:6379": "write redis:// in front of it",
		"redis://a:1,redis://b:2":   "spaces, not commas",
		"redis://:secret@a:1,b:2":   "spaces, not commas",
		"10.0.0.1:6379,10.0.0.2":    "spaces, not commas",
		"redis://a:1,":              "spaces, not commas",
		"redis+sentinel://:secret@a:26379,b:26379/mymaster": "Sentinel is not supported",
		"redis-sentinel://a:26379/mymaster":                 "each by its own address",
		"rediss+sentinel://a:26379?master_name=x":           "Sentinel is not supported",
		"redis://a:26379?master_name=secret":                "unknown parameters: master_name",
		"redis+cluster://:secret@a:1":                       "write redis-cluster://host:port",
		"cluster://:secret@a:1":                             "write redis-cluster://host:port",
		"redis-cluster://:secret@a:1,b:2":                   "write the other nodes of a Redis Cluster as redis-cluster://host:port?addr=",
		"redis-cluster://:secret@a:1/1":                     "no database but 0",
		"redis-cluster://:secret@a:1?db=1":                  "no database but 0",
		"redis-cluster://:secret@":                          "names none of its nodes",
		"redis-cluster://a?addr=b":                          "want addr=host:port",
		"redis-cluster://a?addr=secret@b:1":                 "want addr=host:port",
		"redis-cluster://a?addr=b:secret":                   "want addr=host:port",
		"redis-cluster://a?addr=b:1,c:2":                    "want addr=host:port",
		"redis-cluster://a?read_only=true":                  "read_only of its URL has no effect",
		"redis-cluster://a?nodes=secret":                    "unknown parameters: nodes",
		"redis://:secret@a:1?addr=b:2":                      "addr is for a Redis Cluster",
		"redis-cluster://::1:7000":                          "brackets: write [::1]:7000",
		"redis://:secret@a?pool_size=10":                    "pool_size of its URL has no effect",
		"redis://:secret@a?read_timeout=1s&db=1":            "read_timeout of its URL has no effect",
		"redis://:secret@a?max_retries=3":                   "max_retries of its URL has no effect",
		"redis://:secret@a?protocol=2":                      "protocol of its URL has no effect",
		"redis://:12#secret@a:6379":                         "write %23 for #",
		"redis-cluster://:secret@a?addr=b:1;addr=c:1":       "& between parameters",
		"rediss://:secret@a?skip_verify=true":               "trust_pool",
	} {
		_, err := dial(url)
		if err == nil || !strings.Contains(err.Error(), hint) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v, want %q", url, err, hint)
		}
	}
}

// TestSentinelIsRefused: and says why, in place of a Locker that calls two groups one server.
func TestSentinelIsRefused(t *testing.T) {
	o := redis.FailoverOptions{MasterName: "one", SentinelAddrs: []string{"127.0.0.1:1"}}
	for _, client := range []redis.UniversalClient{redis.NewFailoverClient(&o), redis.NewFailoverClusterClient(&o)} {
		defer func() { _ = client.Close() }()
		if _, err := redlock.NewMaster(client); err == nil || !strings.Contains(err.Error(), "Sentinel") {
			t.Errorf("%T of a Sentinel group: %v", client, err)
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

// TestEvenNumber: an even number of masters is warned of, once, unless another Locker has.
func TestEvenNumber(t *testing.T) {
	for urls, want := range map[string]int{"memory://a": 0, "memory://a memory://b": 1, "memory://a memory://b memory://c": 0} {
		var log logBook
		l := newLocker(t, strings.Fields(urls), log.option())
		lockUnlock(t, l, "key")
		mustClose(t, l) // then all is in the log
		if lines := log.lines("level=WARN", "even number", "masters=2", "tolerated=0"); len(lines) != want {
			t.Errorf("%s: warnings %q, want %d", urls, lines, want)
		}
		var quiet logBook
		mustClose(t, newLocker(t, strings.Fields(urls), quiet.option(), inside.WithoutWarnings.(redlock.Option)))
		if lines := quiet.lines("level=WARN"); len(lines) > 0 {
			t.Errorf("%s: warnings %q without warnings", urls, lines)
		}
	}
}

func TestTLSIsForOpen(t *testing.T) {
	if _, err := redlock.New([]redlock.Master{memoryMaster("")}, redlock.WithTLS(new(tls.Config))); err == nil || !strings.Contains(err.Error(), "WithTLS is for Open") {
		t.Errorf("New with TLS settings: %v", err)
	}
}

func TestNoMasters(t *testing.T) {
	if _, err := redlock.New(nil); err == nil || !strings.Contains(err.Error(), "no masters") {
		t.Errorf("New without masters: %v", err)
	}
	if _, err := redlock.New(make([]redlock.Master, 3)); err == nil || !strings.Contains(err.Error(), "master 1 is empty") {
		t.Errorf("New with masters that nothing has made: %v", err)
	}
}

// TestMastersAreRefused: those on which two processes could have a lock at once.
func TestMastersAreRefused(t *testing.T) {
	for want, urls := range map[string][]string{
		"1 and 3 are both":     {"redis://10.0.0.1", "redis://10.0.0.2", "redis://10.0.0.1:6379"},
		"are both redis://a:1": {"redis://a:1/0", "redis://user:secret@a:1/1"}, // another database is no other server
		"are both memory://":   {"memory://", "memory://"},

		"master 3 is memory://, beside servers":  {"redis://10.0.0.1", "redis://10.0.0.2", "memory://"},
		"master 1 is memory://a, beside servers": {"memory://a", "memory://b", "redis://10.0.0.1"},
	} {
		_, dialErr := dial(urls...)
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
