package agent

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"
)

// slowEnd is a context whose children take their time to end after they have said so.
type slowEnd struct {
	context.Context
	end chan struct{}
}

// Value has package context use AfterFunc.
func (s slowEnd) Value(any) any { return nil }

func (s slowEnd) AfterFunc(func()) func() bool {
	return func() bool { <-s.end; return true }
}

// deadlines are what was set on a connection.
type deadlines struct {
	http.ResponseWriter
	set []time.Time
}

func (d *deadlines) SetReadDeadline(t time.Time) error {
	d.set = append(d.set, t)
	return nil
}

// TestEndIsLeftAlone: once a client has ended its body, what is read on its connection is the next request. A deadline then would end that.
func TestEndIsLeftAlone(t *testing.T) {
	parent := slowEnd{Context: t.Context(), end: make(chan struct{})}
	r, err := http.NewRequestWithContext(parent, http.MethodPost, "/", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	d := new(deadlines)
	client := newTail(r, time.Now())
	client.follow(strings.NewReader("\n"), http.NewResponseController(d))
	<-client.ctx.Done()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		client.close()
	}()
	select {
	case <-ended:
	case <-time.After(50 * time.Millisecond): // it waits for the reader, which it has to end then
	}
	close(parent.end)
	<-ended
	if len(d.set) > 0 || !client.endedInOrder() {
		t.Errorf("deadlines %v after the end; in order: %v", d.set, client.endedInOrder())
	}
}
