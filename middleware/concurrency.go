package middleware

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/caddy-redlock/caddy-redlock/redlock"
)

// Concurrency is how many requests may hold a key at the same time: one number for all keys of a rule, or one for each in their order.
// In JSON one number needs no list.
type Concurrency []int

// UnmarshalJSON reads a number or a list of such.
func (c *Concurrency) UnmarshalJSON(text []byte) error {
	var n int
	if json.Unmarshal(text, &n) == nil {
		*c = Concurrency{n}
		return nil
	}
	return json.Unmarshal(text, (*[]int)(c))
}

// MarshalJSON writes what UnmarshalJSON reads.
func (c Concurrency) MarshalJSON() ([]byte, error) {
	if len(c) == 1 {
		return json.Marshal(c[0])
	}
	return json.Marshal([]int(c))
}

// of returns the number for the key in this place.
func (c Concurrency) of(key int) int { return c[min(key, len(c)-1)] }

// byKey returns the numbers of keys, each of which comes from the one in a place. Where two make one key, the smaller number holds.
func (c Concurrency) byKey(keys []string, from []int) map[string]int {
	most := make(map[string]int, len(keys))
	for i, key := range keys {
		n := c[from[i]]
		if other, known := most[key]; known {
			n = min(n, other)
		}
		most[key] = n
	}
	return most
}

// Check returns an error unless there is one number, or one for each of so many keys, and each may be.
func (c Concurrency) Check(keys int) error {
	if len(c) != 1 && len(c) != keys {
		return fmt.Errorf("concurrency: %d numbers and %d keys: want one for all, or one for each", len(c), keys)
	}
	for _, n := range c {
		if n < 1 || n > redlock.MaxConcurrency {
			return fmt.Errorf("concurrency %d: must be from 1 to %d", n, redlock.MaxConcurrency)
		}
	}
	return nil
}

// checkConcurrency returns why a rule can't have its Concurrency.
func (rule *Serializer) checkConcurrency() error {
	if err := rule.Concurrency.Check(len(rule.keys)); err != nil {
		return err
	}
	if rule.derive == nil && slices.Max(rule.Concurrency) > 1 {
		return errors.New("concurrency: needs a key; an ID is locked for one request at a time")
	}
	return nil
}

// mostOf returns how many requests may hold a key of the turn.
func (t *Turn) mostOf(key string) int {
	if n, ok := t.most[key]; ok {
		return n
	}
	return t.concurrency
}
