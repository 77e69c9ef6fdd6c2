package main

// filesBeside is how many open files the agent needs for other things than its clients: the masters, the log, the operators, mostScrapes.
const filesBeside = 100

// filesFor returns how many open files so many clients of an agent with so many listeners may need. Each listener takes twice as many connections.
func filesFor(clients, listeners int) int { return filesBeside + 2*listeners*clients }

// clientsWithin returns the most clients for which so many open files are enough.
func clientsWithin(files, listeners int) int { return max(1, (files-filesBeside)/(2*listeners)) }
