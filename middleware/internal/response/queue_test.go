package response

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"
)

// readingClient takes one write at a time, when it is told to.
type readingClient struct {
	http.ResponseWriter
	more chan struct{}
	got  []byte
}

func (c *readingClient) Write(p []byte) (int, error) {
	<-c.more
	c.got = append(c.got, p...)
	return len(p), nil
}

// What waits for a client takes about as much memory as it has bytes: the handler can write all that the buffer may hold, and each piece that the
// client takes is given back.
func TestMemoryOfResponse(t *testing.T) {
	body := make([]byte, 1<<20)
	_, _ = rand.NewChaCha8([32]byte{}).Read(body)
	for _, write := range []int{100, 5_000, 32 << 10, 300_000, len(body)} {
		t.Run(fmt.Sprint(write), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var has int64
				client := &readingClient{httptest.NewRecorder(), make(chan struct{}), nil}
				w, written := Wrap(client, Options{Patience: time.Hour, Buffer: &Buffer{
					Most: int64(len(body)),
					Take: func(more int64) bool {
						has += more
						return has <= int64(len(body))
					},
					Settle: func(keep int64) { has = keep },
				}})
				for left := body; len(left) > 0; left = left[min(write, len(left)):] {
					if _, err := w.Write(left[:min(write, len(left))]); err != nil {
						t.Fatal(err)
					}
				}
				synctest.Wait()
				if has != int64(len(body)) {
					t.Errorf("%d bytes are taken", has)
				}
				go written.End(false)
				for synctest.Wait(); len(client.got) < len(body); synctest.Wait() {
					if most := int64(len(body) - len(client.got) + piece); has > most {
						t.Fatalf("%d bytes are taken, after %d: want at most %d", has, len(client.got), most)
					}
					client.more <- struct{}{}
				}
				if !bytes.Equal(client.got, body) || written.HandlerWaited() || has != 0 {
					t.Errorf("%d bytes, the handler waited: %t, %d bytes are not given back", len(client.got), written.HandlerWaited(), has)
				}
			})
		})
	}
}

// brokenClient breaks during its first write, when it is told to. It counts the bytes that are written after that.
type brokenClient struct {
	http.ResponseWriter
	breaks chan struct{}
	broken bool
	after  int
}

func (c *brokenClient) Write(p []byte) (int, error) {
	if c.broken {
		c.after += len(p)
		return len(p), nil
	}
	<-c.breaks
	c.broken = true
	return 0, errors.New("broken")
}

func (c *brokenClient) Flush() {}

// A connection may break just while the handler lets the other goroutine send. Then the handler neither waits for that goroutine nor sends anything
// itself, even if there is no room for further bytes.
func TestConnectionBreaksBeforeFurtherMemory(t *testing.T) {
	for _, flushes := range []int{1, 2} { // the second flush is still to be done when the connection breaks
		t.Run(fmt.Sprint(flushes), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client := &brokenClient{ResponseWriter: httptest.NewRecorder(), breaks: make(chan struct{})}
				taken := 0
				w, written := Wrap(client, Options{Patience: time.Hour, Buffer: &Buffer{
					Most: 1 << 20,
					Take: func(int64) bool {
						if taken++; taken == 2 {
							close(client.breaks)
						}
						return taken <= 2
					},
					Settle: func(int64) {},
				}})
				_, _ = w.Write([]byte{1})
				for range flushes {
					_ = http.NewResponseController(w).Flush()
					synctest.Wait()
				}
				if _, err := w.Write(make([]byte, 2*piece)); err == nil {
					t.Error("the handler isn't told")
				}
				written.End(false)
				if client.after > 0 {
					t.Errorf("%d bytes are sent after the connection has broken", client.after)
				}
			})
		})
	}
}
