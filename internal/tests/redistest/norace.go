//go:build !race

package redistest

// Race reports whether the race detector is on.
const Race = false
