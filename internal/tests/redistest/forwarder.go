package redistest

import (
	"net"
	"sync"
	"testing"
	"time"
)

// Forwarder is the address of a master. It forwards to a server, which can be exchanged, over a network that can be made bad.
type Forwarder struct {
	listener net.Listener
	all      sync.WaitGroup

	mu      sync.Mutex // also held while a connection is made, so that no connection is made to a former server
	server  interface{ Addr() string }
	pairs   map[*pair]bool
	weather Weather
	changed chan struct{} // closed when the weather changes
}

// Weather is the state of the network for what is sent from now on.
type Weather struct {
	Delay             time.Duration // in each direction
	Requests, Replies bool          // whether these are kept back until the weather changes
	Away              bool          // whether new connections are closed at once; those that exist must be Cut
}

// pair is a client's connection and the one to the server.
type pair struct {
	client, server net.Conn
	forgotten      bool          // what is sent is dropped
	held           chan struct{} // the server gets nothing until this is closed; nil if nothing is held
	holds          bool          // something has been held
}

// NewForwarder returns a Forwarder to a Server, or what else has an address. It works until the test ends.
func NewForwarder(t testing.TB, server interface{ Addr() string }) *Forwarder {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f := &Forwarder{listener: listener, server: server, pairs: make(map[*pair]bool), changed: make(chan struct{})}
	f.all.Go(f.accept)
	t.Cleanup(func() {
		_ = listener.Close()
		f.Set(Weather{})
		f.Cut()
		f.all.Wait()
	})
	return f
}

func (f *Forwarder) accept() {
	for {
		client, err := f.listener.Accept()
		if err != nil {
			return
		}
		f.mu.Lock()
		if f.weather.Away {
			_ = client.Close()
			f.mu.Unlock()
			continue
		}
		server, err := net.Dial("tcp", f.server.Addr())
		if err != nil {
			_ = client.Close()
			f.mu.Unlock()
			continue
		}
		p := &pair{client: client, server: server}
		f.pairs[p] = true
		f.mu.Unlock()
		f.all.Go(func() { f.carry(p, p.client, p.server, func(w Weather) bool { return w.Requests }) })
		f.all.Go(func() { f.carry(p, p.server, p.client, func(w Weather) bool { return w.Replies }) })
	}
}

// carry copies in one direction until one of the ends is closed.
func (f *Forwarder) carry(p *pair, from, to net.Conn, kept func(Weather) bool) {
	buffer := make([]byte, 64<<10)
	for {
		n, err := from.Read(buffer)
		if n > 0 {
			if f.through(p, kept) {
				_, _ = to.Write(buffer[:n])
			}
		}
		if err != nil {
			break
		}
	}
	f.mu.Lock()
	delete(f.pairs, p)
	f.mu.Unlock()
	_ = p.client.Close()
	_ = p.server.Close()
}

// through waits until the weather lets something through, and reports whether to send it. On a forgotten connection nothing is sent.
func (f *Forwarder) through(p *pair, kept func(Weather) bool) bool {
	for {
		f.mu.Lock()
		now, changed, known, held := f.weather, f.changed, !p.forgotten, p.held
		f.mu.Unlock()
		if now.Delay > 0 {
			time.Sleep(now.Delay)
		}
		if !kept(now) {
			if held != nil && kept(Weather{Requests: true}) {
				f.mu.Lock()
				p.holds = true
				f.mu.Unlock()
				<-held
			}
			return known
		}
		<-changed
	}
}

// Set changes the weather.
func (f *Forwarder) Set(w Weather) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.weather = w
	close(f.changed)
	f.changed = make(chan struct{})
}

// Cut breaks all connections.
func (f *Forwarder) Cut() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.cutLocked()
}

func (f *Forwarder) cutLocked() {
	for p := range f.pairs {
		_ = p.client.Close()
		_ = p.server.Close()
		delete(f.pairs, p)
	}
}

// LoseClients breaks all connections on the clients' side alone. What they have sent, and is kept back, still reaches the server,
// as data does that waits in a socket's buffer.
func (f *Forwarder) LoseClients() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for p := range f.pairs {
		_ = p.client.Close()
	}
}

// MoveTo puts another server behind the address. It first breaks the connections to the former one: no lock is safe with two
// servers behind one address at once.
func (f *Forwarder) MoveTo(server *Server) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.cutLocked()
	f.server = server
}

// Forget drops what is sent on the present connections, as a firewall does that has forgotten them. New connections work.
func (f *Forwarder) Forget() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for p := range f.pairs {
		p.forgotten = true
	}
}

// Hold keeps back what is sent from now on over the present connections, until deliver is called. It then arrives even if the
// client's side has been broken. New connections work.
func (f *Forwarder) Hold() (deliver func()) {
	held := make(chan struct{})
	f.mu.Lock()
	defer f.mu.Unlock()
	for p := range f.pairs {
		p.held = held
	}
	return sync.OnceFunc(func() { close(held) })
}

// Holds reports whether Hold has kept back something on a connection that is still open.
func (f *Forwarder) Holds() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	for p := range f.pairs {
		if p.holds {
			return true
		}
	}
	return false
}

// Addr returns the host:port.
func (f *Forwarder) Addr() string { return f.listener.Addr().String() }
