//go:build !unix

package main

import (
	"errors"

	"github.com/spf13/cobra"
)

// runCmd says that there is none: the command could not be kept from outliving its lock without process groups.
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
