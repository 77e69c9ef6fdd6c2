package doctor

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/caddy-redlock/caddy-redlock/internal/base/quorum"
)

// process is a process that takes locks on a master, as the process itself has told the master: see beat.lua.
type process struct {
	name    string
	maxTTL  time.Duration
	covers  time.Duration // the longest max_ttl of others that its restart guard covers
	masters []struct {
		Name  string `json:"name"`
		RunID string `json:"run"`
	}
}

// processesOf reads the texts of processes, by their IDs.
func processesOf(told map[string]string) map[string]process {
	all := make(map[string]process)
	for id, text := range told {
		if p, ok := parseProcess(text); ok {
			all[id] = p
		}
	}
	return all
}

// parseProcess reads the text of a process that a master stores: when and with which number the process sent it, since when the process
// locks, its kind, and the rest.
func parseProcess(told string) (p process, ok bool) {
	words := strings.SplitN(told, " ", 5)
	var about struct {
		Name    string          `json:"name"`
		MaxTTL  int64           `json:"max_ttl_ms"`
		Covers  int64           `json:"covers_ms"`
		Masters json.RawMessage `json:"servers"`
	}
	if len(words) < 5 || json.Unmarshal([]byte(words[4]), &about) != nil || json.Unmarshal(about.Masters, &p.masters) != nil {
		return p, false // the process has another version
	}
	p.name, p.maxTTL, p.covers = about.Name, time.Duration(about.MaxTTL)*time.Millisecond, time.Duration(about.Covers)*time.Millisecond
	return p, true
}

// disagreements compares the configuration with the configurations of the processes that the masters know.
func disagreements(s Settings, all []*examination) (findings []Finding) {
	known := make(map[string]process)
	for _, x := range all {
		maps.Copy(known, x.processes)
	}
	names := make(map[Finding][]string) // the names of the processes for which a finding is true
	note := func(p process, f Finding) {
		f.Check = Processes
		names[f] = append(names[f], p.name)
	}
	for _, p := range known {
		if others, refused := p.others(all); refused {
			note(p, Finding{Level: Error, Text: "masters beside which this configuration is refused until they are gone, as both could hold the same lock: " + others,
				Advice: "Change one master at a time, in all processes (docs/operations.md, Changing the masters)."})
		} else if others != "" {
			note(p, Finding{Level: Warning, Text: "other masters than this configuration: " + others, Advice: "Configure the same masters in all processes before you change another one (docs/operations.md, Changing the masters)."})
		}
		if s.MaxTTL > 0 && p.maxTTL != s.MaxTTL {
			f := Finding{Level: Warning, Text: fmt.Sprintf("a max_ttl of %v, and this configuration one of %v", p.maxTTL, s.MaxTTL), Advice: "Configure the same max_ttl in all processes."}
			if p.maxTTL > max(s.MaxTTL, s.Guard-time.Second) || s.MaxTTL > p.covers {
				f.Text += ", for which a restart_guard is too short: a master that restarts may forget a lock"
				f.Advice = fmt.Sprintf("Set restart_guard to %v in all processes before you change max_ttl (docs/operations.md, Changing max_ttl).", max(p.maxTTL, s.MaxTTL)+time.Second)
			}
			note(p, f)
		}
	}
	for _, r := range s.Running {
		if f := r.apart(s, known, all); f.Text != "" {
			note(process{name: r.Instance}, f)
		}
	}
	for f, names := range names {
		slices.Sort(names)
		f.Text = strings.Join(names, ", ") + orHas(len(names)) + f.Text
		findings = append(findings, f)
	}
	slices.SortFunc(findings, func(a, b Finding) int { return strings.Compare(a.Text, b.Text) })
	return findings
}

// apart returns a finding if a running process, which these masters don't know, takes its locks elsewhere than the configuration would.
func (r Running) apart(s Settings, known map[string]process, all []*examination) (f Finding) {
	for _, p := range known {
		if p.name == r.Instance { // the masters know the process
			return f
		}
	}
	f = Finding{Level: Error, Advice: "Reload this process alone, which waits for keys that it holds; with others, stop all of them first (docs/operations.md, Changing key_prefix)."}
	if r.Prefix != s.Prefix {
		f.Text = fmt.Sprintf("the key_prefix %s, and this configuration %s: neither honors the other's locks", r.Prefix, s.Prefix)
		return f
	}
	answers := false
	for _, x := range all {
		if slices.Contains(r.Masters, x.name) {
			return Finding{}
		}
		answers = answers || x.Version != ""
	}
	if answers || all[0].Unexaminable {
		f.Text = fmt.Sprintf("none of the masters of this configuration, but %s: neither honors the other's locks", strings.Join(r.Masters, ", "))
		return f
	}
	return Finding{}
}

func orHas(n int) string {
	if n == 1 {
		return " has "
	}
	return " have "
}

// ofCluster stands for the run ID of a Redis Cluster in the text of a process.
const ofCluster = "?"

// others names the masters of the process if they differ from the examined ones, and says whether locks are refused because a majority
// of one set need not share a master with a majority of the other. Masters are told apart by their run IDs, or by their names where
// one isn't known.
func (p process) others(all []*examination) (names string, refused bool) {
	same, theirs := 0, make([]string, len(p.masters))
	for i, m := range p.masters {
		theirs[i] = m.Name
		if slices.ContainsFunc(all, func(x *examination) bool {
			return m.Name == x.name || x.RunID != "" && x.RunID == m.RunID || x.Cluster && m.RunID == ofCluster
		}) {
			same++
		}
	}
	if same == len(all) && same == len(p.masters) {
		return "", false
	}
	return strings.Join(theirs, ", "), !quorum.Overlap(len(all), len(theirs), len(all)+len(theirs)-same)
}
