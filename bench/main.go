// Bench measures this library, its peers and floors side by side. See README.md.
package main

import (
	"flag"
	"fmt"
	"os"
	"regexp"
	"time"
)

func main() {
	child := flag.String("child", "", "internal: be the process of this contestant")
	masters := flag.String("masters", "", "internal: its masters")
	profile := flag.String("profile", "", "write CPU profiles of the contestants' processes to files of this name and their pid")
	quick := flag.Bool("quick", false, "a smoke run of less than a minute: the figures mean nothing")
	only := flag.String("cells", "", "only cells whose group and name match this expression")
	who := flag.String("contestants", "", "only contestants that match this expression")
	dir := flag.String("o", ".", "directory for RESULTS.md and plots/")
	web := flag.Bool("http", false, "measure Caddy and nginx instead: writes HTTP.md")
	far := flag.Bool("net", false, "measure with a network between the clients and the masters instead: writes NETWORK.md")
	remembered := flag.Bool("remember", false, "measure what it costs to remember answers instead: writes REMEMBER.md")
	former := flag.String("former", "", "with -remember: a checkout of a former commit, whose locks are measured beside")
	flag.Parse()

	if *child == backendChild {
		exit(runBackend(*masters))
	}
	if *child == lineChild {
		exit(runLine(*masters))
	}
	if *child != "" {
		exit(runChild(*child, *masters, *profile))
	}
	killAtSignal()
	if *web {
		exit(runHTTP(*quick, *dir))
	}
	if *remembered {
		exit(runRemember(*quick, *former, *dir))
	}
	if *far {
		exit(run(netCells(*quick), netReport, *only, *who, *dir, *profile))
	}
	exit(run(cells(*quick), report, *only, *who, *dir, *profile))
}

func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// measuredCell is a cell with its results.
type measuredCell struct {
	cell
	results []result
}

type reporter func(done []measuredCell, dir string, took time.Duration) error

func run(list []cell, report reporter, only, who, dir, profile string) error {
	wantCell, err := regexp.Compile(only)
	if err != nil {
		return err
	}
	wantContestant, err := regexp.Compile(who)
	if err != nil {
		return err
	}
	start := time.Now()
	var done []measuredCell
	for _, c := range list {
		var names []string
		for _, name := range c.contestants {
			if wantContestant.MatchString(name) {
				names = append(names, name)
			}
		}
		c.contestants = names
		if len(names) == 0 || !wantCell.MatchString(c.group+": "+c.name) {
			continue
		}
		fmt.Fprintf(os.Stderr, "%4.0f s  %s: %s\n", time.Since(start).Seconds(), c.group, c.name)
		results, err := c.run(profile)
		if err != nil {
			return fmt.Errorf("%s: %s: %w", c.group, c.name, err)
		}
		done = append(done, measuredCell{c, results})
	}
	return report(done, dir, time.Since(start))
}
