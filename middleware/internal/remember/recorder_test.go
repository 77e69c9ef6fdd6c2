package remember

import (
	"net/http"
	"testing"
)

// TestRoomIsGivenBack: a body that can't be remembered takes no memory from then on, however long its response lasts.
func TestRoomIsGivenBack(t *testing.T) {
	for name, giveUp := range map[string]func(r *Recorder){
		"too large": func(r *Recorder) { r.Write([]byte("56789")) },
		"hijacked":  (*Recorder).Forget,
	} {
		has := 0
		r := NewRecorder(nil, 8, func(bytes int) bool { has = bytes; return true })
		r.Begin(http.StatusOK, http.Header{})
		if r.Write([]byte("1234")); has == 0 {
			t.Errorf("%s: it takes no room at first", name)
		}
		if giveUp(r); has != 0 {
			t.Errorf("%s: it still takes room for %d bytes", name, has)
		}
	}
}
