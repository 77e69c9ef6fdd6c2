//go:build !linux

package main

import (
	"errors"
	"time"
)

type line struct{}

func newLine(network, []string) (*line, []string, error) {
	return nil, nil, errors.New("needs Linux, for its timers")
}

func (*line) run() error { return nil }

func (*line) takeLate() []time.Duration { return nil }
