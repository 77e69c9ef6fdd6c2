//go:build unix

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"time"
)

// believer is a client that believes in its lock for exactly as long as the wire says.
type believer struct {
	fence uint64
	mu    sync.Mutex
	sent  time.Time
	end   time.Time
	gone  bool
	close func()
}

// believe takes the lock on k, or returns nil.
func believe(ctx context.Context, a *agentProcess, ttl time.Duration) *believer {
	conn, err := net.Dial("unix", a.path)
	if err != nil {
		return nil
	}
	unhook := context.AfterFunc(ctx, func() { _ = conn.Close() })
	b := &believer{sent: time.Now()}
	line := fmt.Sprintf(`{"key":"k","ttl":"%v","wait":"2s"}`+"\n", ttl)
	_, _ = fmt.Fprintf(conn, "POST /v1/lock HTTP/1.1\r\nHost: redlock\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n", len(line), line)
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil || response.StatusCode != http.StatusOK {
		_ = conn.Close()
		return nil
	}
	lines := bufio.NewReader(response.Body)
	if !b.read(lines) {
		_ = conn.Close()
		return nil
	}
	unhook()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for b.read(lines) {
		}
	}()
	b.close = func() {
		_, _ = io.WriteString(conn, "0\r\n\r\n")
		select {
		case <-ended:
		case <-time.After(50 * time.Millisecond): // a stopped agent
		}
		_ = conn.Close()
		<-ended
	}
	return b
}

// read takes a line, and reports whether the lock is still held.
func (b *believer) read(lines *bufio.Reader) bool {
	var line struct {
		Fence uint64 `json:"fence"`
		Valid int64  `json:"valid_ms"`
	}
	text, err := lines.ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(text, &line)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if err != nil || line.Valid == 0 {
		b.gone = true
		return false
	}
	if line.Fence > 0 {
		b.fence = line.Fence
	}
	b.end = b.sent.Add(time.Duration(line.Valid) * time.Millisecond)
	return true
}

func (b *believer) believes() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return !b.gone && time.Now().Before(b.end)
}
