package doctor

import (
	"fmt"
	"time"
)

// judge returns the findings about one master for which the other masters don't matter.
func (x *examination) judge() (findings []Finding) {
	if x.Unexaminable {
		return nil
	}
	if x.Mode == "sentinel" {
		return []Finding{{Level: Error, Check: Mode, Text: "it is a Sentinel, which keeps no keys", Advice: "Name independent Redis servers, each by its own address.", excludes: true}}
	}
	for _, check := range []func() []Finding{x.reachability, x.mode, x.versionNumber, x.judgeRights, x.latency, x.uptimeAgainstGuard, x.lostData, x.certificate, x.eviction, x.disk} {
		findings = append(findings, check()...)
	}
	if x.Cluster {
		for i := range findings {
			findings[i].Master = x.Name
		}
	}
	for _, node := range x.others {
		findings = append(findings, node.judge()...)
	}
	return findings
}

func (x *examination) mode() []Finding {
	switch {
	case x.Cluster && x.Mode != "" && x.Mode != "cluster":
		return []Finding{{Level: Error, Check: Mode, Text: "it is no node of a Redis Cluster", Advice: "Write redis:// before its address, or rediss:// for TLS.", excludes: true}}
	case !x.Cluster && x.Mode == "cluster":
		return []Finding{{Level: Error, Check: Mode, Text: "it is a node of a Redis Cluster, which has only some of the keys",
			Advice: "Name independent servers; or the whole cluster as one master: redis-cluster://host:port, rediss-cluster:// for TLS.", excludes: true}}
	}
	return nil
}

func (x *examination) versionNumber() []Finding {
	if x.TooOld {
		return []Finding{{Level: Error, Check: Version, Text: "it is Redis " + x.Version, Advice: "Use Redis 6.2 or newer, or Valkey.", excludes: true}}
	}
	return nil
}

// latency compares the round trip with the timeout, which adapts up to four times its value, and with the leases.
func (x *examination) latency() []Finding {
	rtt := x.RoundTrip
	up := func(d, step time.Duration) time.Duration { return (d + step - 1).Truncate(step) }
	advice := fmt.Sprintf("Set timeout to at least %v, or use a server that is nearer.", up(2*rtt, 10*time.Millisecond))
	text := fmt.Sprintf("a round trip takes %v, and the timeout is %v", short(rtt), x.Timeout)
	switch {
	case rtt == 0:
		return nil
	case rtt > 4*x.Timeout:
		return []Finding{{Level: Error, Check: Latency, Text: text + ": no reply comes in time", Advice: advice, excludes: true}}
	case rtt > x.Timeout:
		return []Finding{{Level: Warning, Check: Latency, Text: text, Advice: advice}}
	case rtt > x.LeastTTL/20:
		return []Finding{{Level: Warning, Check: Latency, Text: fmt.Sprintf("a round trip takes %v, and the shortest ttl is %v: little time is left to renew a lease", short(rtt), x.LeastTTL),
			Advice: fmt.Sprintf("Raise the ttl to at least %v, or use a server that is nearer.", up(20*rtt, 100*time.Millisecond))}}
	}
	return nil
}

func (x *examination) uptimeAgainstGuard() []Finding {
	f := Finding{Level: Warning, Check: Uptime, Text: fmt.Sprintf("it was started %v ago, and may have forgotten locks: it votes in %v", x.Uptime, x.Guard-x.Uptime),
		Advice: "Wait. In development, restart_guard off saves the wait.", excludes: true}
	started := time.Now().Add(x.Offset - x.Uptime)
	switch {
	case !x.HasUptime || x.Guard == 0:
		return nil
	case x.HasClock && started.Year() < 1980: // the uptime includes the jump from 1970 to the present
		f.Text = fmt.Sprintf("its uptime can't be right (%v), and counts for nothing: each process that starts lets it vote only after %v", x.Uptime, x.Guard)
		f.Advice = "Restart it, as its clock was wrong when it started; one master at a time."
	case x.Uptime >= x.Guard:
		return nil
	}
	return []Finding{f}
}

// lostData says that the server has lost its data without a restart. A process that starts gives it no vote until all leases have ended.
func (x *examination) lostData() []Finding {
	rest := max(x.Guard, x.MaxTTL) - x.LostAgo
	if x.LostAgo == 0 || rest <= 0 {
		return nil
	}
	return []Finding{{Level: Warning, Check: Uptime, Text: fmt.Sprintf("it lost its data %v ago, as a running process has noticed, and its locks with it: it votes in %v", x.LostAgo.Truncate(time.Second), rest.Round(time.Second)),
		Advice: "Wait, and look who deleted its data (FLUSHALL, a restored copy).", excludes: true}}
}

// RenewCertificate is the advice about a certificate that ends within CertificateSoon.
const (
	CertificateSoon  = 14 * 24 * time.Hour
	RenewCertificate = "With the new files, CONFIG SET tls-cert-file FILE tls-key-file FILE (a service does this itself); if an authority's ends, first have all processes trust the new one, too (docs/operations.md, Rotation)."
)

func (x *examination) certificate() []Finding {
	until := x.CertificateUntil
	if until.IsZero() || time.Until(until) > CertificateSoon {
		return nil
	}
	return []Finding{{Level: Warning, Check: Certificate, Text: fmt.Sprintf("its certificate, or one that vouches for it, ends on %s UTC: no connection can be made after that", until.UTC().Format("2006-01-02 at 15:04")),
		Advice: RenewCertificate}}
}

// NoEviction is the advice about a maxmemory-policy that deletes locks.
const NoEviction = "Set maxmemory-policy noeviction, with CONFIG SET and in redis.conf, or in the settings of a service; a cache needs a server of its own."

func (x *examination) eviction() []Finding {
	policy, limit := x.Memory.Policy, float64(x.Memory.Max)
	switch used := float64(x.Memory.Used); {
	case policy == "":
		return nil
	case policy != "noeviction" && limit > 0:
		return []Finding{{Level: Error, Check: Eviction, Text: fmt.Sprintf("it deletes locks and remembered responses when its memory is full: maxmemory-policy is %s", policy),
			Advice: NoEviction}}
	case policy != "noeviction":
		return []Finding{{Level: Warning, Check: Eviction, Text: fmt.Sprintf("maxmemory-policy is %s, which deletes locks and remembered responses as soon as a maxmemory is set", policy),
			Advice: NoEviction}}
	case limit > 0 && used > 0.8*limit && x.rights.why == "":
		return []Finding{{Level: Warning, Check: Eviction, Text: fmt.Sprintf("%.0f %% of its maxmemory are used; when it is full, it takes no locks", 100*used/limit),
			Advice: "Raise maxmemory; shorten remember, or lower its size; or use a server for locks alone."}}
	}
	return nil
}

// disk judges whether a restart forgets too much. With the restart guard, nothing need be on the disk. Without the guard, everything must be.
func (x *examination) disk() []Finding {
	aof, fsync, onRewrite := x.Info["aof_enabled"], x.Config["appendfsync"], x.Config["no-appendfsync-on-rewrite"]
	switch {
	case x.Guard > 0 && x.Remember && aof == "0":
		return []Finding{{Level: Note, Check: Persistence, Text: "a restart empties it, with its copies of remembered responses (appendonly no)",
			Advice: "One restart at a time loses no response that is on all masters. To keep responses when most masters restart, set appendonly yes on all."}}
	case x.Guard > 0 && !x.Remember && x.Config["save"] != "" && x.Config["stop-writes-on-bgsave-error"] == "yes":
		return []Finding{{Level: Note, Check: Persistence, Text: "it saves snapshots, which locks don't need, and takes no locks while it can't save",
			Advice: `Set save "", if the server is for locks alone; restart_guard covers restarts.`}}
	case x.Guard > 0 || len(x.Info) == 0:
		return nil
	case aof == "0":
		return []Finding{{Level: Error, Check: Persistence, Text: "restart_guard is off, and a restart forgets its locks (appendonly no)",
			Advice: "Remove restart_guard off; or set appendonly yes, appendfsync always. In development it is fine."}}
	case fsync != "" && fsync != "always":
		return []Finding{{Level: Error, Check: Persistence, Text: "restart_guard is off, and a crash forgets the last locks (appendfsync " + fsync + ")",
			Advice: "Remove restart_guard off, or set appendfsync always."}}
	case onRewrite == "yes":
		return []Finding{{Level: Error, Check: Persistence, Text: "restart_guard is off, and a crash during a rewrite forgets the last locks (no-appendfsync-on-rewrite yes)",
			Advice: "Remove restart_guard off, or set no-appendfsync-on-rewrite no."}}
	case fsync == "":
		return []Finding{{Level: Note, Check: Persistence, Text: "can't be told, for lack of the right to CONFIG GET: whether a crash forgets locks, which matters as restart_guard is off",
			Advice: "Look for appendonly yes, appendfsync always and no-appendfsync-on-rewrite no on the server."}}
	}
	return nil
}

// short rounds a duration for a person.
func short(d time.Duration) time.Duration {
	switch {
	case d.Abs() >= time.Second:
		return d.Round(10 * time.Millisecond)
	case d.Abs() >= 10*time.Millisecond:
		return d.Round(time.Millisecond)
	}
	return d.Round(10 * time.Microsecond)
}
