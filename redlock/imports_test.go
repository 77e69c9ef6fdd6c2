package redlock

import (
	"go/build"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestImports: imports run one way, from redlock to the packages inside it and from these to protocol, and in redlock only the
// files that make masters know the Redis client.
func TestImports(t *testing.T) {
	const module, client = "github.com/caddy-redlock/caddy-redlock/", "github.com/redis/go-redis/v9"
	const protocol, memory, redis = "redlock/internal/protocol", "redlock/internal/memory", "redlock/internal/redis"
	const admission, heartbeat, link, cluster = "redlock/internal/admission", "redlock/internal/heartbeat", "redlock/internal/link", "redlock/internal/cluster"
	const vote = "redlock/internal/vote"
	const hook, simnet = "redlock/internal/hook", "redlock/internal/simnet"
	for dir, allowed := range map[string][]string{
		".":              {protocol, memory, redis, admission, heartbeat, link, cluster, vote, hook, "internal/base/inside", "internal/base/lockname", "internal/base/notices", "internal/base/quorum", "internal/base/version"},
		"../inspect":     {"redlock", hook, vote, heartbeat, protocol, "internal/base/lockname"},
		"../simnet":      {"redlock", hook, simnet},
		"../redlocktest": {"redlock", hook, memory, protocol},
		"vote":           {link, protocol, admission},
		"cluster":        {link, protocol, redis, admission},
		"link":           {protocol, admission},
		"admission":      {protocol},
		"memory":         {protocol},
		"redis":          {protocol, "internal/base/inside"},
		"heartbeat":      {protocol, "internal/base/inside", "internal/base/quorum"},
		"hook":           {protocol, vote, heartbeat, "internal/base/inside"},
		"simnet":         {protocol, memory, redis},
		"protocol":       {"internal/base/lockname"},
	} {
		path := dir
		if dir != "." {
			path = filepath.Join("internal", dir)
		}
		p, err := build.ImportDir(path, 0)
		if err != nil {
			t.Fatal(err)
		}
		for imported, at := range p.ImportPos {
			switch own, isOwn := strings.CutPrefix(imported, module); {
			case isOwn:
				if !slices.Contains(allowed, own) {
					t.Errorf("%s imports %s", at[0], own)
				}
			case imported == client || strings.HasPrefix(imported, client+"/"):
				for _, file := range at {
					if name := filepath.Base(file.Filename); dir != "redis" && (dir != "." || name != "master.go") {
						t.Errorf("%s imports %s", file, imported)
					}
				}
			case strings.Contains(strings.Split(imported, "/")[0], "."):
				t.Errorf("%s imports %s", at[0], imported)
			}
		}
	}
}
