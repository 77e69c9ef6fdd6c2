package console

import (
	"cmp"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/caddy-redlock/caddy-redlock/internal/base/inside"
	"github.com/caddy-redlock/caddy-redlock/internal/base/lockname"
	"github.com/caddy-redlock/caddy-redlock/internal/base/version"
	"github.com/caddy-redlock/caddy-redlock/redlock"
	"github.com/caddy-redlock/caddy-redlock/redlock/inspect"
)

func statusOf(lockers []*redlock.Locker) Status {
	all := Status{Ready: len(lockers) > 0, Version: version.String(), Lockers: []Locker{}}
	for _, l := range lockers {
		status, own := l.Status(), inside.Of(l)
		shown := Locker{
			Instance:  own.Instance,
			Prefix:    own.Prefix,
			Ready:     status.Ready(),
			Quorum:    status.Quorum,
			Available: status.Available,
			Held:      status.Held,
			Waiting:   status.Waiting,
			Error:     text(status.Err),
			Masters:   []Master{},
		}
		for _, d := range status.Disagreements {
			shown.Disagreements = append(shown.Disagreements, disagreement(d))
		}
		for _, m := range status.Masters {
			m.Since, m.Until = utc(m.Since), utc(m.Until)
			shown.Masters = append(shown.Masters, Master{m, text(m.Err), m.RoundTrip.Seconds(), m.ClockOffset.Seconds()})
		}
		all.Lockers = append(all.Lockers, shown)
		all.Ready = all.Ready && shown.Ready
	}
	return all
}

// keysOf returns the keys that the lists show.
func keysOf(lockers []*redlock.Locker, prefix string) []inspect.KeyStatus {
	return folded(allKeysOf(lockers, prefix))
}

// keysWith returns the keys that logs name by this hash.
func keysWith(lockers []*redlock.Locker, hash string) []inspect.KeyStatus {
	return slices.DeleteFunc(allKeysOf(lockers, ""), func(k inspect.KeyStatus) bool { return lockname.Hash(k.Key) != hash })
}

// allKeysOf returns the keys of all lockers, sorted. If several lockers have a key, their order is kept.
func allKeysOf(lockers []*redlock.Locker, prefix string) []inspect.KeyStatus {
	var all []inspect.KeyStatus
	for _, l := range lockers {
		all = append(all, inspect.Keys(l, prefix)...)
	}
	if len(lockers) > 1 {
		slices.SortStableFunc(all, func(a, b inspect.KeyStatus) int { return cmp.Compare(a.Key, b.Key) })
	}
	return all
}

// pageOf returns the sorted keys that come behind after, as many as the limit allows, and whether there are more. It doesn't end
// between two locks on one key: the next page begins behind the key.
func pageOf(keys []inspect.KeyStatus, after string, limit int) (page []inspect.KeyStatus, more bool) {
	begin := 0
	if after != "" { // no key is empty
		begin, _ = slices.BinarySearchFunc(keys, after, func(k inspect.KeyStatus, after string) int {
			return cmp.Or(cmp.Compare(k.Key, after), -1)
		})
	}
	end := min(begin+limit, len(keys))
	for end > begin && end < len(keys) && keys[end].Key == keys[end-1].Key {
		end++
	}
	return keys[begin:end], end < len(keys)
}

const (
	byKey     = "key"
	byWaiting = "waiting" // the keys first for which most calls wait, and of these the oldest
)

// hottest returns the keys for which most calls wait, and of these the oldest first.
func hottest(keys []inspect.KeyStatus, limit int) []inspect.KeyStatus {
	places := make([]int, len(keys)) // indices are faster to sort than statuses
	for i := range places {
		places[i] = i
	}
	slices.SortFunc(places, func(i, j int) int {
		a, b := &keys[i], &keys[j]
		return cmp.Or(cmp.Compare(b.Waiting, a.Waiting), a.Since.Compare(b.Since), cmp.Compare(i, j))
	})
	first := make([]inspect.KeyStatus, min(limit, len(keys)))
	for i := range first {
		first[i] = keys[places[i]]
	}
	return first
}

// locksOf returns a page of the keys that have the prefix. Only a list that is sorted by key has more than one.
func locksOf(keys []inspect.KeyStatus, prefix, after, order string, limit int) Locks {
	page, more := pageOf(keys, after, limit)
	if order == byWaiting {
		page, more = hottest(keys, limit), false
	}
	all := Locks{Locks: []Lock{}, Keys: len(keys)}
	for _, key := range keys {
		all.Waiting += key.Waiting
		if key.Held {
			all.Held++
		}
	}
	for _, key := range page {
		lock := Lock{
			Key:     key.Key,
			Label:   key.Label,
			Held:    key.Held,
			Since:   utc(key.Since),
			Until:   utc(key.Until),
			Fence:   key.Fence,
			Waiting: key.Waiting,
			Line:    lineOf(key.Line),
			Request: requestOf(key.Request),
			Href:    hrefOf(key.Key),
		}
		if key.Slots > 1 {
			lock.Slot, lock.Slots = new(key.Slot), key.Slots
			lock.Href += "&slot=" + strconv.Itoa(key.Slot)
		}
		all.Locks = append(all.Locks, lock)
	}
	if more {
		next := url.Values{"after": {page[len(page)-1].Key}}
		if prefix != "" {
			next.Set("prefix", prefix)
		}
		if limit != defaultLimit {
			next.Set("limit", strconv.Itoa(limit))
		}
		all.Next = "locks?" + next.Encode()
	}
	return all
}

// hrefOf returns the URL of a key's Inspection, relative to that of the handler.
func hrefOf(key string) string { return "locks?" + url.Values{"key": {key}}.Encode() }

func inspected(seen *inspect.View) InspectedLocker {
	l := InspectedLocker{
		Slot:       seen.Slot,
		Held:       seen.Held,
		Fence:      seen.Fence,
		Holder:     seen.Holder,
		TTLSeconds: seen.TTL.Seconds(),
		Turn:       turnOf(seen.Turn),
		Remembered: seen.Remembered,
		Result:     resultOf(seen.Result),
		Masters:    []InspectedMaster{},
	}
	for _, m := range seen.Masters {
		shown := InspectedMaster{
			Name:       m.Name,
			Error:      text(m.Err),
			Token:      m.Token,
			Holder:     m.Holder,
			TTLSeconds: m.TTL.Seconds(),
			Fence:      m.Fence,
			Result:     resultOf(m.Result),
			Queue:      []InspectedWaiter{},
		}
		for _, waiter := range m.Queue {
			shown.Queue = append(shown.Queue, InspectedWaiter{Process: waiter.Process, Since: utc(waiter.Since), Turn: turnOf(waiter.Turn)})
		}
		l.Masters = append(l.Masters, shown)
	}
	return l
}

// resultOf returns nil if nothing is remembered.
func resultOf(seen inspect.Result) *Result {
	if seen.Fence == 0 {
		return nil
	}
	return &Result{Fence: seen.Fence, Bytes: seen.Bytes, KeepSeconds: seen.Keep.Seconds()}
}

// add adds the view of one more locker, unless its masters know nothing of the key.
func (i *Inspection) add(l InspectedLocker) {
	known := l.Held || l.Result != nil || len(l.Taken) > 0
	for _, m := range l.Masters {
		known = known || m.Token != "" || len(m.Queue) > 0
	}
	if known {
		i.Lockers = append(i.Lockers, l)
	}
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// utc returns the time as JSON shows it: in UTC, and to the millisecond.
func utc(t time.Time) time.Time {
	if t.IsZero() {
		return t
	}
	return t.UTC().Truncate(time.Millisecond)
}
