package doctor

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// process is a process that takes locks on a master, as it has registered there: see register.lua.
type process struct {
	name    string
	maxTTL  time.Duration
	masters []struct {
		Name  string `json:"name"`
		RunID string `json:"id"`
	}
}

const maxProcesses = 1000

// readProcesses asks which processes take locks there. A user who may not is told nothing about them.
func (x *examination) readProcesses(ctx context.Context, cn *redis.Conn) error {
	key := x.Prefix + ":sets:{sets}"
	now := strconv.FormatInt(time.Now().Add(x.offset).UnixMicro(), 10)
	known, err := cn.ZRangeArgs(ctx, redis.ZRangeArgs{Key: key + ":queue", Start: now, Stop: "+inf", ByScore: true, Count: maxProcesses}).Result()
	x.processes = make(map[string]process)
	for _, name := range known {
		var about string
		if about, err = cn.HGet(ctx, key+":leases", name).Result(); err != nil {
			break
		}
		if p, ok := parseProcess(name, about); ok {
			x.processes[name] = p
		}
	}
	if isRefusal(err) || err == redis.Nil {
		return nil
	}
	return err
}

// parseProcess reads what is stored of a process: its ID and its name; and since when it runs, its version and its set of masters.
func parseProcess(name, about string) (p process, ok bool) {
	_, p.name, _ = strings.Cut(name, " ")
	words := strings.SplitN(about, " ", 4)
	if len(words) < 4 {
		return p, false
	}
	var set struct {
		MaxTTL  int64           `json:"max_ttl_ms"`
		Masters json.RawMessage `json:"masters"`
	}
	if json.Unmarshal([]byte(words[3]), &set) != nil || json.Unmarshal(set.Masters, &p.masters) != nil {
		return p, false // of another version
	}
	p.maxTTL = time.Duration(set.MaxTTL) * time.Millisecond
	return p, true
}

// disagreements compares the configuration with those of the processes that the masters know.
func disagreements(s Settings, all []*examination) (findings []Finding) {
	known := make(map[string]process)
	for _, x := range all {
		maps.Copy(known, x.processes)
	}
	texts := make(map[string][]string) // the processes of each
	for _, p := range known {
		if missing := p.others(all); missing != "" {
			text := "other masters than this configuration: " + missing
			texts[text] = append(texts[text], p.name)
		}
		if s.MaxTTL > 0 && p.maxTTL != s.MaxTTL {
			text := fmt.Sprintf("a max_ttl of %v, and this configuration one of %v", p.maxTTL, s.MaxTTL)
			texts[text] = append(texts[text], p.name)
		}
	}
	for _, text := range slices.Sorted(maps.Keys(texts)) {
		names := texts[text]
		slices.Sort(names)
		findings = append(findings, Finding{Level: Warning, Check: Processes, Text: strings.Join(names, ", ") + orHas(len(names)) + text,
			Advice: "Configure the same masters and max_ttl in all processes, or change them step by step (docs/operations.md)."})
	}
	return findings
}

func orHas(n int) string {
	if n == 1 {
		return " has "
	}
	return " have "
}

// others names the masters of the process if they are others than those that are examined. They are told apart by their run IDs, or by
// their names where one isn't known.
func (p process) others(all []*examination) string {
	same, names := 0, make([]string, len(p.masters))
	for i, m := range p.masters {
		names[i] = m.Name
		if slices.ContainsFunc(all, func(x *examination) bool {
			id := x.info["run_id"]
			return m.Name == x.name || id != "" && id == m.RunID
		}) {
			same++
		}
	}
	if same == len(all) && same == len(p.masters) {
		return ""
	}
	return strings.Join(names, ", ")
}
