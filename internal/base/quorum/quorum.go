// Package quorum has the arithmetic of majorities.
package quorum

// Of returns how many of so many servers are a majority.
func Of(servers int) int { return servers/2 + 1 }

// Overlap reports whether each majority of the one servers has a server of each majority of the others. There are all servers together.
func Overlap(ones, others, all int) bool { return Of(ones)+Of(others) > all }
