package redlock

import (
	"slices"
	"strings"
	"testing"
	"time"
)

// TestMajoritiesMeet compares the rule with all majorities of all sets of up to 6 masters.
func TestMajoritiesMeet(t *testing.T) {
	for n := 1; n <= 6; n++ {
		for m := 1; m <= 6; m++ {
			for common := range min(n, m) + 1 {
				ours, theirs, always := 1<<n-1, (1<<m-1)<<(n-common), true
				for a := range 1 << (n + m) {
					for b := theirs; b > 0 && always && a&^ours == 0 && ones(a) > n/2; b = (b - 1) & theirs {
						always = ones(b) <= m/2 || a&b != 0
					}
				}
				if got := majoritiesMeet(n, m, common); got != always {
					t.Errorf("%d and %d masters, %d in common: meet %v, want %v", n, m, common, got, always)
				}
				if (n-common)+(m-common) <= 1 && !always {
					t.Errorf("%d and %d masters, %d in common: neighbours that don't meet", n, m, common)
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

// TestWhoWasFirst: of two sets that don't meet, both processes name the same one as the first, and it is the one whose servers were there
// first, although a restart of one of them has just given its set another text.
func TestWhoWasFirst(t *testing.T) {
	const second = 1_000_000
	for _, c := range []struct {
		older string
		known map[string]int64 // since when, in seconds
		newer string
	}{
		{"a=1 b=2 c=3", map[string]int64{"a=1 b=2 c=3": 10}, "A=4 B=5 a=1"},
		{"a=1 b=2>7 c=3", map[string]int64{"a=1 b=2>7 c=3": 99, "a=1 b=2 c=3": 10}, "A=4 B=5 a=1"},
		{"a=1 b=2>7 c=3>8", map[string]int64{"a=1 b=2>7 c=3>8": 100, "a=1 b=2>7 c=3": 99, "a=1 b=2 c=3": 10}, "A=4 B=5 a=1"},
		{"a=1 b=2 c=3", map[string]int64{"a=1 b=2 c=3": 10}, "a=1 b=2>7 c=3>8"}, // the newer one's names lead to other servers now
	} {
		uses := []use{{text: setOf(c.newer).text(), set: setOf(c.newer), since: 98 * second}}
		for known, since := range c.known {
			uses = append(uses, use{text: setOf(known).text(), set: setOf(known), since: since * second})
		}
		v := &view{now: 101 * second, uses: uses}
		first := func(own, other string) bool {
			r := &registry{own: *setOf(own)}
			return !r.wasFirst(v, uses[slices.IndexFunc(uses, func(u use) bool { return u.text == setOf(other).text() })])
		}
		if !first(c.older, c.newer) || first(c.newer, c.older) {
			t.Errorf("%s is not before %s", c.older, c.newer)
		}
	}
}

// TestDoubtNeedsAnAnswer: only masters that answer can show that a set is still in use that we had ourselves
// before a master restarted, not answers from long ago. Nor does a doubt from before count, when we had another set.
func TestDoubtNeedsAnAnswer(t *testing.T) {
	o, err := newOptions(nil)
	if err != nil {
		t.Fatal(err)
	}
	masters, err := Dial("redis://127.0.0.1:1", "redis://127.0.0.1:2", "redis://127.0.0.1:3")
	if err != nil {
		t.Fatal(err)
	}
	former := setOf("a=1 b=2 c=3")
	for _, c := range []struct {
		age     time.Duration // of the answers
		doubted time.Duration // ago
		noted   bool
	}{{time.Second, time.Second, true}, {doubtTime + time.Second, time.Second, false}, {time.Second, doubtTime, false}} {
		r := newRegistry(o, masters, 2, "ABCDEFGH")
		r.own.Masters = setOf("a=1 b=2 c=9").Masters
		now := time.Now()
		u := use{text: former.text(), set: former, since: 1, seen: now.UnixMicro()}
		r.views[0] = view{sent: now.Add(-c.age), inUse: true, now: now.UnixMicro(), uses: []use{u}}
		r.doubted[u.text] = doubt{now.Add(-2 * doubtTime), now.Add(-c.doubted)}
		r.compare()
		if noted := len(r.logged) > 0; noted != c.noted {
			t.Errorf("an answer %v ago, doubted %v ago: told %v, want %v", c.age, c.doubted, r.logged, c.noted)
		}
	}
}
