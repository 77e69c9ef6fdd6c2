package redlock

import (
	"errors"
	"fmt"
	"net/url"

	"github.com/redis/go-redis/v9"
)

// Dial makes masters of URLs: redis://[user:password@]host[:port][/db], rediss:// for TLS,
// unix:///path/to/socket, and memory:// for one in this process's memory. It doesn't connect: New
// does. The same server twice is an error. Errors name a URL that can't be read by its position only,
// because it may hold a password.
func Dial(urls ...string) ([]Master, error) {
	masters := make([]Master, 0, len(urls))
	for i, u := range urls {
		m, err := dial(u)
		if err != nil {
			return nil, fmt.Errorf("redlock: master %d of %d: %w", i+1, len(urls), err)
		}
		masters = append(masters, m)
	}
	return masters, distinct(masters)
}

const urlForms = "want redis://host:port, rediss://host:port, unix:///path or memory://"

func dial(text string) (Master, error) {
	u, err := url.Parse(text)
	if err != nil {
		return nil, errors.New("not a valid URL (not shown, it may hold a password); " + urlForms)
	}
	if u.Scheme == "memory" {
		if u.Path != "" || u.User != nil || u.RawQuery != "" {
			return nil, errors.New("a memory:// URL has at most a name: memory://NAME")
		}
		return NewMemoryMaster(u.Host), nil
	}
	o, err := redis.ParseURL(text)
	if err != nil {
		return nil, errors.New("not a URL of a Redis server (not shown, it may hold a password); " + urlForms)
	}
	return newRedisMaster(*o), nil
}
