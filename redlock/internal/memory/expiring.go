package memory

import (
	"iter"
	"time"
)

// Expiring is a map whose values expire. The zero value is empty.
type Expiring[V any] struct {
	values  map[string]expiringValue[V]
	sweepAt int // the size at which expired values are removed
}

type expiringValue[V any] struct {
	value V
	ends  time.Time
}

// Get returns the value of a key and when it expires. ok is false if there is none, or if it has expired.
func (e *Expiring[V]) Get(key string, now time.Time) (value V, ends time.Time, ok bool) {
	v, ok := e.values[key]
	if !ok || !now.Before(v.ends) {
		return value, ends, false
	}
	return v.value, v.ends, true
}

// Set gives a key a value that expires after the TTL.
func (e *Expiring[V]) Set(key string, value V, now time.Time, ttl time.Duration) {
	if e.values == nil {
		e.values = make(map[string]expiringValue[V])
	}
	e.values[key] = expiringValue[V]{value, now.Add(ttl)}
	if len(e.values) < max(e.sweepAt, 1024) {
		return
	}
	for key, v := range e.values {
		if !now.Before(v.ends) {
			delete(e.values, key)
		}
	}
	e.sweepAt = 2 * len(e.values)
}

func (e *Expiring[V]) Delete(key string) { delete(e.values, key) }

// All yields the keys and values that have not expired.
func (e *Expiring[V]) All(now time.Time) iter.Seq2[string, V] {
	return func(yield func(string, V) bool) {
		for key, v := range e.values {
			if now.Before(v.ends) && !yield(key, v.value) {
				return
			}
		}
	}
}
