package redlock

import "time"

// expiring is a map whose values end. The zero value is empty.
type expiring[V any] struct {
	values  map[string]expiringValue[V]
	sweepAt int // size at which the dead values are removed
}

type expiringValue[V any] struct {
	value V
	ends  time.Time
}

func (e *expiring[V]) get(key string, now time.Time) (value V, ends time.Time, ok bool) {
	v, ok := e.values[key]
	if !ok || !now.Before(v.ends) {
		return value, ends, false
	}
	return v.value, v.ends, true
}

func (e *expiring[V]) set(key string, value V, now time.Time, ttl time.Duration) {
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

func (e *expiring[V]) delete(key string) { delete(e.values, key) }
