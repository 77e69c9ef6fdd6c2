// Package corpus has requests as real clients write them, which the grammar of keys must not refuse.
package corpus

import (
	"bufio"
	"bytes"
	"compress/gzip"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"

	"github.com/caddy-redlock/caddy-redlock/internal/engine"
	"github.com/caddy-redlock/caddy-redlock/middleware"
	"github.com/caddy-redlock/caddy-redlock/redlock"
)

// Templates has the template of each format of requests.
var Templates = map[string]string{
	"query": "{query.id}", "nested-query": "{query.order.id}", "form": "{body.id}", "nested-form": "{body.order.id}", "json": "{body.id}",
	"cookie": "{cookie.cart_id}", "header": "{header.X-Order}", "path": "{path.2}",
}

// Request is what a client has sent for a case.
type Request struct {
	Client string `json:"c"`
	Format string `json:"f"`
	ID     string `json:"i"` // which the client was told to send
	Text   string `json:"r"` // of HTTP/1.1
}

//go:embed testdata/requests.jsonl.gz
var sample []byte

// Sample returns the requests that are stored.
func Sample() ([]Request, error) {
	unzipped, err := gzip.NewReader(bytes.NewReader(sample))
	if err != nil {
		return nil, err
	}
	var requests []Request
	for decoder := json.NewDecoder(unzipped); ; {
		var r Request
		if err := decoder.Decode(&r); errors.Is(err, io.EOF) {
			return requests, nil
		} else if err != nil {
			return nil, err
		}
		requests = append(requests, r)
	}
}

// Checker judges requests by the rules of all formats.
type Checker struct {
	locker   *redlock.Locker
	handlers map[string]http.Handler
	key      string // of the last request
}

// NewChecker returns a Checker, which must be closed.
func NewChecker() (*Checker, error) {
	locker, err := redlock.Open([]string{"memory://"})
	if err != nil {
		return nil, err
	}
	c := &Checker{locker: locker, handlers: make(map[string]http.Handler)}
	for format, template := range Templates {
		c.handlers[format] = middleware.New(locker, template, middleware.Rule{})(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			turn, _ := middleware.TurnFromContext(r.Context())
			c.key = turn.Key
		}))
	}
	return c, nil
}

// Close closes its Locker.
func (c *Checker) Close() error { return c.locker.Close() }

// Check returns an error unless a request is served under the key of its ID.
func (c *Checker) Check(sent Request) error {
	r, err := http.ReadRequest(bufio.NewReader(strings.NewReader(sent.Text)))
	if err != nil {
		return err
	}
	value, err := engine.ParseTemplate("{value}", func(string) (middleware.KeyFunc, error) {
		return func(*http.Request) (string, error) { return sent.ID, nil }, nil
	})
	if err != nil {
		return err
	}
	want, err := value.Key(r)
	if err != nil {
		return err
	}
	c.key = ""
	w := httptest.NewRecorder()
	// A large number in JSON has two keys.
	if c.handlers[sent.Format].ServeHTTP(w, r); !slices.Contains(strings.Fields(c.key), want) {
		return fmt.Errorf("status %d with the key %q, want %q: %s", w.Code, c.key, want, w.Body)
	}
	return nil
}
