package redistest

import "testing"

// Few reports whether tests of many cases try only a few: with -short, as "make test" does, and with the race detector,
// which makes computations five to ten times slower. "make models" tries all of them.
func Few() bool { return Race || testing.Short() }
