// Package quorum has the arithmetic of majorities.
package quorum

// Of returns how many servers of this many are a majority.
func Of(servers int) int { return servers/2 + 1 }

// Overlap reports whether every majority of a first set of servers shares a server with every majority of a second set. ones and others are the sizes
// of the sets, and all is how many servers they have together.
func Overlap(ones, others, all int) bool { return Of(ones)+Of(others) > all }
