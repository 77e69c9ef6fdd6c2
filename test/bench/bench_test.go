package main

import (
	"bufio"
	"fmt"
	"math"
	"net"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestSends: what a contestant sends, as MONITOR shows it, is what we count from the statistics, in
// which Redis also counts the commands that scripts call.
func TestSends(t *testing.T) {
	for _, kind := range kinds {
		if kind.sends == nil {
			continue // it has no master
		}
		t.Run(kind.name, func(t *testing.T) {
			servers, err := startServers(1)
			if err != nil {
				t.Fatal(err)
			}
			defer stopServers(servers)
			contestant, err := kind.open(addrs(servers))
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := contestant.Close(); err != nil {
					t.Error(err)
				}
			}()
			load := slice{Callers: 4, Key: oneKey, Hold: time.Millisecond, Time: 300 * time.Millisecond}
			load.put(contestant) // connections are made, scripts are loaded

			monitor, err := net.Dial("tcp", servers[0].addr)
			if err != nil {
				t.Fatal(err)
			}
			lines := make(chan []string)
			go func() { lines <- sent(monitor) }()
			fmt.Fprint(monitor, "MONITOR\r\n")
			time.Sleep(50 * time.Millisecond)
			before, err := read(servers, kind.sends)
			if err != nil {
				t.Fatal(err)
			}
			load.put(contestant)
			after, err := read(servers, kind.sends)
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(50 * time.Millisecond)
			_ = monitor.Close()
			seen := <-lines
			// Not of locks: our INFO, and the greeting of a connection that a pool makes in between.
			seen = slices.DeleteFunc(seen, func(name string) bool { return name == "info" || name == "hello" || name == "client" })
			// A ping of the background may fall between.
			if counted := after.commands - before.commands; counted == 0 || math.Abs(float64(counted-len(seen))) > 2 {
				slices.Sort(seen)
				t.Errorf("counted %d commands, MONITOR saw %d: %q", counted, len(seen), slices.Compact(seen))
			}
		})
	}
}

// sent are the names of the commands that clients send, until the connection is closed.
func sent(monitor net.Conn) []string {
	var names []string
	for in := bufio.NewScanner(monitor); in.Scan(); {
		line := in.Text() // +1339518083.107412 [0 127.0.0.1:60866] "keys" "*"; of a script: [0 lua]
		source, command, ok := strings.Cut(line, "] \"")
		if ok && !strings.HasSuffix(source, " lua") {
			name, _, _ := strings.Cut(command, "\"")
			names = append(names, strings.ToLower(name))
		}
	}
	return names
}

func TestJain(t *testing.T) {
	for _, c := range []struct {
		turns []int
		want  float64
	}{{[]int{3, 3, 3, 3}, 1}, {[]int{4, 0, 0, 0}, 0.25}, {[]int{2, 1}, 0.9}} {
		if got := jain(cell{}, sample{outcome: outcome{Turns: c.turns}}); math.Abs(got-c.want) > 1e-9 {
			t.Errorf("jain of %v is %v, want %v", c.turns, got, c.want)
		}
	}
}

func TestHolders(t *testing.T) {
	most, average := holders([]hold{{0, 100}, {10, 100}, {20, 30}, {30, 40}, {60, 90}})
	if most != 3 || average != 2.6 {
		t.Errorf("%d at most, %v on average", most, average)
	}
}

func TestMedian(t *testing.T) {
	if got := median([]float64{3, 1, math.NaN(), 2}); got != 2 {
		t.Errorf("median is %v, want 2", got)
	}
}
