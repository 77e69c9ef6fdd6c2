package redlock

import (
	"testing"
	"time"
)

type mutant struct {
	name, breaks string
	shape        func(w *world)
	send         func(l *link, cmd *Command)
	answer       func(l *link, cmd *Command)
	delayed      func(cmds []Command, trip time.Duration)
	serve        func(m *memoryMaster, cmd *Command) bool
}

var _ = testing.Short
