package sets

import (
	"math/bits"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/redlock/internal/protocol"
)

// TestMajoritiesMeet compares the rule with all majorities of all sets of up to 6 masters.
func TestMajoritiesMeet(t *testing.T) {
	for n := 1; n <= 6; n++ {
		for m := 1; m <= 6; m++ {
			for common := range min(n, m) + 1 {
				ours, theirs, always := 1<<n-1, (1<<m-1)<<(n-common), true
				for a := range 1 << (n + m) {
					for b := theirs; b > 0 && always && a&^ours == 0 && bits.OnesCount(uint(a)) > n/2; b = (b - 1) & theirs {
						always = bits.OnesCount(uint(b)) <= m/2 || a&b != 0
					}
				}
				if got := MajoritiesMeet(n, m, common); got != always {
					t.Errorf("%d and %d masters, %d in common: meet %v, want %v", n, m, common, got, always)
				}
				if (n-common)+(m-common) <= 1 && !always {
					t.Errorf("%d and %d masters, %d in common: neighbors that don't meet", n, m, common)
				}
			}
		}
	}
}

// setOf makes a set of masters: "name=id", "name" if it was never reached, "name=id?" if it is down now, "name=was>id" if it had another
// run before.
func setOf(masters string) *set {
	s := &set{}
	for field := range strings.FieldsSeq(masters) {
		name, id, _ := strings.Cut(field, "=")
		was, id, restarted := strings.Cut(id, ">")
		if !restarted {
			was, id = "", was
		}
		s.Masters = append(s.Masters, member{Name: name, RunID: strings.TrimSuffix(id, "?"), Was: was, Up: id != "" && !strings.HasSuffix(id, "?")})
	}
	return s
}

func TestSetsAreCompared(t *testing.T) {
	for _, c := range []struct {
		ours, theirs              string
		same, meets               bool
		lenientSame, lenientMeets bool
	}{
		{"a=1 b=2 c=3", "a=1 b=2 c=3", true, true, true, true},
		{"a=1 b=2 c=3", "x=3 y=1 z=2", true, true, true, true}, // other names
		{"a=1 b=2 c=3", "a=1 b=2 c=3 d=4", false, true, false, true},
		{"a=1 b=2 c=3", "a=1 b=2", false, true, false, true},
		{"a=1 b=2 c=3", "a=1 b=2 e=5", false, false, false, false},
		{"a=1 b=2 c=3 d=4", "a=1 b=2 c=3 e=5", false, true, false, true}, // three of four meet in five
		{"a=1 b=2 c=3", "a=1", false, false, false, false},
		{"a=1 b=2 c=3", "a=1 b=2 e", true, true, true, true},         // what e is isn't known
		{"a=1 b=2 c", "a=1 b=2 e=5", true, true, true, true},         //
		{"a=1 b=2 c", "a=1 d=4 e=5", false, false, false, false},     // but one of d and e is not c
		{"a=1 b=2 c=3", "a=1 b=2 c=9", false, false, true, true},     // restarted, or another server
		{"a=1 b=2 c=3?", "a=1 b=2 c=9", true, true, true, true},      // restarted, and not seen yet
		{"a=1 b=2 c=3?", "a=1 b=2 e=5", false, false, false, false},  //
		{"a=1 b=2 c=3>9", "x=1 y=2 z=3", false, false, true, true},   // restarted, under other names
		{"a=1 b=2 c=3>9", "x=1 y=2 z=3?", true, true, true, true},    // and it can't see that now
		{"a=1 b=2 c=3>8", "x=1 y=2 z=3>9", false, false, true, true}, // one has missed one of two restarts
		{"a=1 b=2 c=3>9", "x=1 y=2 z=5", false, false, false, false}, //
		{"a=1>8 b=1 c=3", "a=1 b=2 c=3", false, false, false, false}, // an address leads to another server of the set
		{"a=1 b=2 c=3", "d=4 e=5 f=6", false, false, false, false},   //
		{"a=1 b=2 c=3 d=4 e=5", "a=1 b=2 c=3", false, false, false, false},
	} {
		ours, theirs := setOf(c.ours), setOf(c.theirs)
		for range 2 {
			got := []bool{ours.same(theirs, false), ours.meets(theirs, false), ours.same(theirs, true), ours.meets(theirs, true)}
			if want := []bool{c.same, c.meets, c.lenientSame, c.lenientMeets}; !slices.Equal(got, want) {
				t.Errorf("%s and %s: %v, want %v", ours, theirs, got, want)
			}
			ours, theirs = theirs, ours
		}
	}
}

// TestDoubtNeedsAReply: only masters that answer can show that a set is still in use that we had ourselves
// before a master restarted, not replies from long ago. Nor does a doubt from before count, when we had another set.
func TestDoubtNeedsAReply(t *testing.T) {
	former := setOf("a=1 b=2 c=3")
	for _, c := range []struct {
		age     time.Duration // of the replies
		doubted time.Duration // ago
		noted   bool
	}{{time.Second, time.Second, true}, {doubtTime + time.Second, time.Second, false}, {time.Second, doubtTime, false}} {
		now := time.Now()
		j := New(now, []string{"a", "b", "c"}, time.Minute, time.Minute)
		j.own.Masters = setOf("a=1 b=2 c=9").Masters
		u := use{text: former.text(), set: former, since: 1, seen: now.UnixMicro()}
		j.views[0] = view{sent: now.Add(-c.age), now: now.UnixMicro(), uses: []use{u}}
		j.doubted[u.text] = doubt{now.Add(-2 * doubtTime), now.Add(-c.doubted)}
		j.Look(now)
		if noted := len(j.logged) > 0; noted != c.noted {
			t.Errorf("a reply %v ago, doubted %v ago: told %v, want %v", c.age, c.doubted, j.logged, c.noted)
		}
	}
}

// TestRestartAfterSwaps: a set is taken for what it was before all its masters restarted, wherever they were then, and whatever of that
// was known.
func TestRestartAfterSwaps(t *testing.T) {
	for seed := range uint64(5000) {
		r := rand.New(rand.NewPCG(seed, 0))
		now, run := time.Now(), 0
		j := New(now, []string{"c", "b", "a"}, time.Second, time.Second)
		behind := make([]string, 3) // which server is reached, by address
		var before []*set
		reach := func() {
			for _, m := range r.Perm(len(behind)) {
				before = append(before, mustParse(t, j.own.text()))
				j.Reached(now, m, protocol.Server{RunID: behind[m], Received: now}, time.Time{})
			}
		}
		restart := func() {
			for m := range behind {
				run++
				behind[m] = strconv.Itoa(run)
			}
			reach()
		}
		restart()
		before = nil
		for range r.IntN(4) {
			m, n := r.IntN(3), r.IntN(3)
			behind[m], behind[n] = behind[n], behind[m]
			reach()
		}
		restart()
		for _, former := range before {
			if !j.own.same(former, true) || !former.same(&j.own, true) {
				t.Fatalf("seed %d: %s is another set than %s", seed, j.own.text(), former.text())
			}
		}
	}
}

func mustParse(t *testing.T, text string) *set {
	t.Helper()
	s, err := parseSet(text)
	if err != nil {
		t.Fatal(err)
	}
	return s
}
