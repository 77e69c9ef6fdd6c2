//go:build !unix

package main

import (
	"errors"
	"io/fs"
	"math"

	"github.com/spf13/cobra"
)

// runCmd returns a command that only fails: without process groups, the command that it runs could outlive its lock.
func runCmd() *cobra.Command {
	return &cobra.Command{
		Use:                "run",
		Short:              "Runs a command under a lock (not on Windows)",
		DisableFlagParsing: true,
		RunE: func(*cobra.Command, []string) error {
			return errors.New("redlock run needs process groups and signals, which this system does not have")
		},
	}
}

func ownedBy(fs.FileInfo, int) bool { return true }

func openFiles() int { return math.MaxInt }
