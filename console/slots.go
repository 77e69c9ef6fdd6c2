package console

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/caddy-redlock/caddy-redlock/redlock"
	"github.com/caddy-redlock/caddy-redlock/redlock/inspect"
)

// anySlot stands for all slots of a key.
const anySlot = -1

func slotOf(parameters map[string]string) (int, *Problem) {
	text, given := parameters["slot"]
	if !given {
		return anySlot, nil
	}
	slot, err := strconv.Atoi(text)
	if err != nil || slot < 0 || slot >= redlock.MaxConcurrency {
		return 0, badRequest("slot must be a number from 0 to " + strconv.Itoa(redlock.MaxConcurrency-1) + ".")
	}
	return slot, nil
}

// inspectLocker returns the key as the masters of a locker see it, even with an error if some have answered.
func inspectLocker(ctx context.Context, l *redlock.Locker, key string, slot int) (*InspectedLocker, error) {
	if slot != anySlot {
		seen, err := inspect.Slot(ctx, l, key, slot)
		if seen == nil {
			return nil, err
		}
		shown := inspected(seen)
		return &shown, err
	}
	slots, err := inspect.Slots(ctx, l, key)
	if len(slots) == 0 {
		return nil, err
	}
	shown := inspected(slots[0])
	if shown.Slots = slots[0].Slots; shown.Slots < 2 && len(slots) == 1 {
		shown.Slots = 0
		return &shown, err
	}
	for _, s := range slots {
		if s.Held {
			shown.Taken = append(shown.Taken, TakenSlot{Slot: s.Slot, Fence: s.Fence, Holder: s.Holder, TTLSeconds: s.TTL.Seconds(), Turn: turnOf(s.Turn)})
		}
	}
	return &shown, err
}

// slotted returns a key, with its slot if it has one, as text that looks like no other.
func slotted(key string, slot *int) string {
	if slot == nil {
		return shown(key)
	}
	return fmt.Sprintf("%s, slot %d", shown(key), *slot)
}

// SlotsTaken says how many slots of the key are taken. It is empty for a key that one request holds at a time.
func (l *InspectedLocker) SlotsTaken() string {
	switch taken := len(l.Taken); {
	case taken == 0 && l.Slots == 0:
		return ""
	case taken < l.Slots:
		return fmt.Sprintf("%d of %d slots taken", taken, l.Slots)
	case taken == l.Slots:
		return fmt.Sprintf("all %d slots taken", taken)
	default: // none is held here, or another process has more
		return count(taken, "slot taken", "slots taken")
	}
}

// notReleased returns why no lock on the slot had the fence that was named.
func notReleased(seen *Inspection, slot int) *Problem {
	of := "The key"
	for _, l := range seen.Lockers {
		taken := l.Taken
		if slot > 0 || len(taken) > 0 || l.Slots > 0 {
			of = fmt.Sprintf("Slot %d of the key", slot)
		}
		if len(taken) == 0 && l.Held {
			taken = []TakenSlot{{Fence: l.Fence}}
		}
		if i := slices.IndexFunc(taken, func(s TakenSlot) bool { return s.Slot == slot }); i >= 0 {
			err := problem("fence_changed", http.StatusConflict, of+" has another lock by now", "Nothing was released. fence is that of the present lock.")
			err.Fence = taken[i].Fence
			return err
		}
	}
	return problem("unknown_key", http.StatusNotFound, "Nobody holds "+strings.ToLower(of), "")
}
