package middleware_test

import (
	"fmt"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-redlock/caddy-redlock/middleware"
)

// budgetTest is a server in a bubble, where time passes only while all goroutines wait: a response without waiting takes no time.
type budgetTest struct {
	t      *testing.T
	server pipes
	open   chan struct{} // closed
	hold   chan struct{} // for the clients that send all but the end of their bodies
	all    sync.WaitGroup
	ids    int
}

const (
	testBudget  = 8 << 20
	testMaxBody = 1 << 20
)

func testBodies(t *testing.T, f func(*budgetTest)) {
	synctest.Test(t, func(t *testing.T) {
		budget := middleware.NewBudget(testBudget)
		client := func(r *http.Request) string { return r.Header.Get("Client") }
		b := &budgetTest{t: t, open: make(chan struct{}), hold: make(chan struct{})}
		b.server = servePipes(t, middleware.New(newLocker(t, live), "{body.id}", middleware.Rule{BodyBudget: budget, ClientAddress: client})(http.HandlerFunc(ok)))
		close(b.open)
		f(b)
		b.all.Wait()
		b.atOnce("2001:db8:f::1", testMaxBody, false) // all of the room has been given back
	})
}

func (b *budgetTest) send(s bodySender) {
	b.ids++
	s.id = b.ids
	b.all.Go(func() {
		if status, err := s.send(b.server.dial()); err != nil || status != http.StatusOK {
			b.t.Errorf("%+v: status %d, %v", s, status, err)
		}
	})
}

// holds makes a client send all of a body but its end, as far as the server takes it.
func (b *budgetTest) holds(client string, length int, chunked bool) {
	b.send(bodySender{client: client, length: length, chunked: chunked, goOn: b.hold, path: "/"})
}

// atOnce makes a client send a body, which must be served without waiting for others.
func (b *budgetTest) atOnce(client string, length int, chunked bool) {
	b.t.Helper()
	synctest.Wait()
	start := time.Now()
	b.ids++
	status, err := bodySender{client: client, length: length, chunked: chunked, goOn: b.open, path: "/", id: b.ids}.send(b.server.dial())
	if waited := time.Since(start); err != nil || status != http.StatusOK || waited > time.Second {
		b.t.Errorf("%s, %d bytes: status %d, %v, after %v", client, length, status, err, waited)
	}
}

// A length that a client merely declares takes no room from others.
func TestDeclaredBodiesTakeNoRoom(t *testing.T) {
	t.Parallel()
	testBodies(t, func(b *budgetTest) {
		var silent sync.WaitGroup
		for i := range 1000 {
			conn := b.server.dial()
			_ = conn.SetDeadline(time.Now().Add(time.Hour))
			silent.Go(func() {
				length := []string{"Content-Length: 1048576", "Transfer-Encoding: chunked"}[i%2]
				fmt.Fprintf(conn, "POST / HTTP/1.1\r\nHost: x\r\nClient: 192.0.2.1\r\nContent-Type: application/json\r\n%s\r\n\r\n80000\r\n ", length)
				<-b.hold
				_ = conn.Close()
			})
		}
		for _, client := range []string{"192.0.2.1:123", "192.0.2.2"} {
			b.atOnce(client, 2000, true)
			b.atOnce(client, testMaxBody, true)
			b.atOnce(client, testMaxBody, false)
		}
		close(b.hold)
		silent.Wait()
	})
}

// However much a client sends, others find room. An IPv6 network counts as one client.
func TestShareOfAClient(t *testing.T) {
	t.Parallel()
	testBodies(t, func(b *budgetTest) {
		for i := range 100 {
			b.holds(fmt.Sprintf("2001:db8::%x", i), testMaxBody, i%2 == 0)
		}
		for _, client := range []string{"192.0.2.1", "[2001:db8:0:1::1]:4711"} {
			for range 3 {
				b.atOnce(client, 2000, true)
				b.atOnce(client, testMaxBody, false)
			}
		}
		close(b.hold)
	})
}

// However many large bodies there are, small ones find room.
func TestSmallBodiesFindRoom(t *testing.T) {
	t.Parallel()
	testBodies(t, func(b *budgetTest) {
		for i := range 100 {
			b.holds(fmt.Sprintf("192.0.2.%d", i), testMaxBody, i%2 == 0)
		}
		for i := range 20 {
			b.atOnce("198.51.100.1", 2000, i%2 == 0)
		}
		close(b.hold)
	})
}

// Bodies that have arrived in part, and together have taken all room, don't wait for each other for the rest.
func TestHalfReadBodiesAreCompleted(t *testing.T) {
	t.Parallel()
	for _, length := range []int{20_000, 60_000, testMaxBody / 2, testMaxBody} {
		t.Run(fmt.Sprint(length), func(t *testing.T) {
			testBodies(t, func(b *budgetTest) {
				start := time.Now()
				for i := range min(1000, 40*testMaxBody/length) {
					b.holds(fmt.Sprintf("192.0.2.%d", i%7), length, i%2 == 0)
					if i%10 == 0 {
						synctest.Wait() // otherwise all take their steps together
					}
				}
				synctest.Wait()
				close(b.hold)
				b.all.Wait()
				if waited := time.Since(start); waited > time.Second {
					t.Errorf("somebody waited for %v", waited)
				}
			})
		})
	}
}
