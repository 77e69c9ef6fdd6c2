package doctor

import (
	"maps"
	"time"

	"github.com/caddy-redlock/caddy-redlock/internal/base/inside"
)

// examination has the facts about one master. Nothing is judged before all facts are known.
type examination struct {
	Settings
	*inside.Examination
	name      string
	rights    rights
	processes map[string]process // by their IDs
	others    []*examination     // the other nodes of a Redis Cluster
}

func examined(s Settings, name string, found *inside.Examination) *examination {
	x := &examination{Settings: s, Examination: found, name: name, rights: rightsOf(found), processes: processesOf(found.Processes)}
	for _, node := range found.Others {
		other := examined(s, node.Name, node)
		maps.Copy(x.processes, other.processes)
		x.others = append(x.others, other)
	}
	return x
}

func (x *examination) summary() MasterReport {
	return MasterReport{
		Name:            x.name,
		Version:         x.version(),
		RoundTrip:       x.RoundTrip.Seconds(),
		ClockOffset:     x.Offset.Round(time.Microsecond).Seconds(),
		Uptime:          int64(x.Uptime.Seconds()),
		MaxmemoryPolicy: x.Memory.Policy,

		CertificateUntil: x.CertificateUntil,
		Persistence:      x.persistence(),
	}
}

func (x *examination) version() string {
	if v := x.Info["valkey_version"]; v != "" {
		return "Valkey " + v
	}
	return x.Version
}

// persistence says in a few words which data the server keeps on its disk, or "".
func (x *examination) persistence() string {
	switch {
	case x.Info["aof_enabled"] == "1" && x.Config["appendfsync"] != "":
		return "aof " + x.Config["appendfsync"]
	case x.Info["aof_enabled"] == "1":
		return "aof"
	case x.Config["save"] != "":
		return "rdb"
	case x.Info["aof_enabled"] == "" || len(x.Config) == 0:
		return ""
	}
	return "none"
}
