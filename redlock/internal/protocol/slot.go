package protocol

import (
	"strconv"
	"strings"
)

// MaxSlots bounds how many may hold a key at once.
const MaxSlots = 256

const slotInfix = ":slot:"

// SlotKey returns the key of a slot of a lock. Slot 0 is the lock itself, so that a process with one slot excludes those with more
// from it. No lock has a name like that of another slot: its own ends with a brace.
func SlotKey(key string, slot int) string {
	if slot == 0 {
		return key
	}
	return key + slotInfix + strconv.Itoa(slot)
}

// SlotOf returns the key of the lock, by which its line goes, and the slot of which SlotKey has made the name.
func SlotOf(name string) (key string, slot int) {
	if strings.HasSuffix(name, "}") {
		return name, 0
	}
	if at := strings.LastIndex(name, slotInfix); at >= 0 {
		if slot, err := strconv.Atoi(name[at+len(slotInfix):]); err == nil {
			return name[:at], slot
		}
	}
	return name, 0
}
