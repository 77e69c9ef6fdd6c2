// Bench measures this library, its peers and a floor side by side. See README.md.
package main

import (
	"flag"
	"fmt"
	"os"
	"regexp"
	"time"
)

func main() {
	child := flag.String("child", "", "internal: be this process: a contestant, the delay line or the backend")
	masters := flag.String("masters", "", "internal: the addresses that it is for")
	flag.IntVar(&atOnce, "at-once", atOnce, "internal: how many may hold a key at the same time")
	trip := flag.Duration("trip", 0, "internal: the delay line's round trip")
	profile := flag.String("profile", "", "write CPU profiles of the contestants' processes to files of this name and their pid")
	quick := flag.Bool("quick", false, "a smoke run of less than a minute: the figures mean nothing")
	only := flag.String("cells", "", "only cells whose group and name match this expression")
	who := flag.String("contestants", "", "only contestants that match this expression")
	dir := flag.String("o", ".", "directory for RESULTS.md and results.csv")
	web := flag.Bool("http", false, "measure Caddy instead: the section HTTP of RESULTS.md")
	flag.Parse()

	switch *child {
	case "":
	case backendChild:
		exit(runBackend(*masters))
	case lineChild:
		exit(runLine(*masters, *trip))
	default:
		exit(runChild(*child, *masters, *profile))
	}
	killAtSignal()
	if *web {
		exit(runHTTP(*quick, *dir))
	}
	exit(runLocks(cells(*quick), *only, *who, *dir, *profile))
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

func runLocks(list []cell, only, who, dir, profile string) error {
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
