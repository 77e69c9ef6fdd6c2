package doctor

import (
	"fmt"
	"net"
	"slices"
	"strings"
	"time"
)

func number(all []*examination) []Finding {
	switch n := len(all); {
	case n == 1 && all[0].Unexaminable:
		return []Finding{{Level: Note, Check: Number, Text: "locks are kept in the memory of the process, and don't exclude requests in other processes",
			Advice: "List your Redis servers: in a Caddyfile, in the global option redlock { masters … }, and for an agent in --masters."}}
	case n == 1:
		return []Finding{{Level: Note, Check: Number, Text: "there is one master: while it is away, nothing can be locked", Advice: "Use three, to survive the loss of one."}}
	case n%2 == 0:
		return []Finding{{Level: Warning, Check: Number, Text: fmt.Sprintf("%d masters survive the loss of %s, no more than %d would, and one more can fail", n, orNone((n-1)/2), n-1),
			Advice: fmt.Sprintf("Use %d or %d.", n-1, n+1)}}
	}
	return nil
}

// clusters notes the limits of a Redis Cluster.
func clusters(all []*examination) (findings []Finding) {
	for _, x := range all {
		if x.Cluster && x.Mode == "cluster" {
			findings = append(findings, Finding{Level: Note, Check: Mode, Master: x.name, Text: "it is a Redis Cluster: a replica that is promoted may lack the last locks, so it grants none for max_ttl",
				Advice: "For locks that go on when a server is lost, use three independent servers."})
		}
	}
	return findings
}

func orNone(n int) string {
	if n == 0 {
		return "none"
	}
	return fmt.Sprint(n)
}

// together returns the findings that need several masters.
func together(s Settings, all []*examination) []Finding {
	return slices.Concat(sameServer(all), replicas(all), sameHost(all), clocks(s, all), disagreements(s, all))
}

// sameServer finds servers that are named twice, and several servers behind one proxy.
func sameServer(all []*examination) (findings []Finding) {
	for i, x := range all {
		if x.OtherRun != "" {
			findings = append(findings, Finding{Level: Error, Check: Independence, Master: x.name, Text: "two connections to this address reached two servers",
				Advice: "Name the servers themselves, not a load balancer or proxy before them."})
		}
		for _, other := range all[:i] {
			if x.RunID != "" && other.RunID == x.RunID {
				findings = append(findings, Finding{Level: Error, Check: Independence, Master: x.name, Text: "it is the same server as " + other.name,
					Advice: "List each server once.", excludes: true})
				break
			}
		}
	}
	return findings
}

func replicas(all []*examination) (findings []Finding) {
	for _, x := range all {
		if x.Role != "slave" {
			continue
		}
		of := net.JoinHostPort(x.Info["master_host"], x.Info["master_port"])
		text := "it is a replica of " + of
		for _, other := range all {
			if other.Reached == of || other.Addr == of {
				text = "it is a replica of " + other.name + ", and only repeats what that says"
			}
		}
		findings = append(findings, Finding{Level: Error, Check: Independence, Master: x.name, Text: text,
			Advice: "Name an independent server instead, or make this one independent (REPLICAOF NO ONE).", excludes: true})
	}
	return findings
}

// sameHost remarks on masters at one address, which fail together.
func sameHost(all []*examination) []Finding {
	names := make(map[string][]string)
	var hosts []string
	for _, x := range all {
		if host, _, err := net.SplitHostPort(x.Reached); err == nil {
			if names[host] == nil {
				hosts = append(hosts, host)
			}
			names[host] = append(names[host], x.name)
		}
	}
	var findings []Finding
	for _, host := range hosts {
		if n := len(names[host]); n > 1 {
			findings = append(findings, Finding{Level: Note, Check: Independence, Text: fmt.Sprintf("%d masters are at %s, and fail together if that is one machine: %s", n, host, strings.Join(names[host], ", ")),
				Advice: "Put each master on a machine of its own."})
		}
	}
	return findings
}

// clocks compares the clocks of the masters with their median, as a process does.
func clocks(s Settings, all []*examination) (findings []Finding) {
	var offsets []time.Duration
	for _, x := range all {
		if x.HasClock {
			offsets = append(offsets, x.Offset)
		}
	}
	n := len(offsets)
	if n < 2 {
		return nil
	}
	slices.Sort(offsets)
	if s.MaxSkew == 0 {
		if apart := offsets[n-1] - offsets[0]; s.Guard > 0 && apart >= s.Guard {
			findings = append(findings, Finding{Level: Error, Check: Clock, Text: fmt.Sprintf("the masters' clocks are %v apart, and max_skew is off: fencing tokens may go back when one restarts", short(apart)),
				Advice: "Synchronize the clocks (NTP), and remove max_skew off."})
		}
		return findings
	}
	middle := offsets[(n-1)/2]/2 + offsets[n/2]/2
	for _, x := range all {
		off := x.Offset - middle
		far := off.Abs() - x.Accuracy // the clock is at least this far away
		if !x.HasClock || far <= s.MaxSkew/4 {
			continue
		}
		direction := "ahead of"
		if off < 0 {
			direction = "behind"
		}
		f := Finding{Level: Warning, Check: Clock, Master: x.name, Text: fmt.Sprintf("its clock is %v %s the median of the masters' clocks, and max_skew allows %v", short(off.Abs()), direction, s.MaxSkew/2),
			Advice: "Synchronize its clock (NTP: chronyc tracking, timedatectl)."}
		if far > s.MaxSkew/2 {
			f.Level, f.excludes = Error, true
		}
		findings = append(findings, f)
	}
	return findings
}
