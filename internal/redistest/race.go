//go:build race

package redistest

// Race reports whether the race detector is on. It makes computations five to ten times slower, so tests of many random cases
// try only a few of them then, and all of them in a run without it. "make test" does both.
const Race = true
