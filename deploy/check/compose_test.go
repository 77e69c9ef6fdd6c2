package check

import (
	"context"
	"fmt"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/compose-spec/compose-go/v2/cli"
)

// TestCompose has the parser of docker compose read docker-compose.yml, and looks at what its parts say of each other.
func TestCompose(t *testing.T) {
	dir := copyOfDeploy(t)
	options, err := cli.NewProjectOptions([]string{filepath.Join(dir, "docker-compose.yml")})
	if err != nil {
		t.Fatal(err)
	}
	project, err := options.LoadProject(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	port := fmt.Sprint(redisPort(t))
	published := make(map[string]bool)
	redis, caddies := 0, 0
	for name, service := range project.Services {
		for _, volume := range service.Volumes {
			if _, err := os.Stat(volume.Source); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		mounts := make(map[string]string)
		for _, volume := range service.Volumes {
			mounts[volume.Target] = filepath.Base(volume.Source)
		}
		switch {
		case strings.HasPrefix(name, "redis"):
			redis++
			if mounts["/etc/redlock/redis.conf"] != "redis.conf" || service.Command[len(service.Command)-1] != "/etc/redlock/redis.conf" {
				t.Errorf("%s doesn't run with redis.conf: %q, %q", name, service.Command, mounts)
			}
			if file := find(t, "redis.conf", `^aclfile (\S+)$`); mounts[file] != "users.acl" {
				t.Errorf("%s has no %s: %q", name, file, mounts)
			}
		case strings.HasPrefix(name, "caddy"):
			caddies++
			var hosts []string
			for master := range strings.FieldsSeq(*service.Environment["REDLOCK_MASTERS"]) {
				u, err := url.Parse(master)
				if err != nil || u.Port() != port {
					t.Errorf("%s: master %q: %v", name, master, err)
				}
				hosts = append(hosts, u.Hostname())
			}
			all := slices.DeleteFunc(slices.Sorted(maps.Keys(project.Services)), func(name string) bool { return !strings.HasPrefix(name, "redis") })
			if !slices.Equal(hosts, all) {
				t.Errorf("%s has the masters %q, of %q", name, hosts, all)
			}
			if config := find(t, "Dockerfile", `^CMD .*"(/\S+)"\]$`); mounts[config] != "Caddyfile" {
				t.Errorf("%s: %s is %q", name, config, mounts[config])
			}
			upstream, upstreamPort, _ := strings.Cut(*service.Environment["UPSTREAM"], ":")
			if _, ok := project.Services[upstream]; !ok || !strings.Contains(read(t, "../shop.Caddyfile"), "http://:"+upstreamPort+" {") {
				t.Errorf("%s: there is no upstream %s:%s", name, upstream, upstreamPort)
			}
			if len(service.Ports) != 1 || !hasPort(t, int32(service.Ports[0].Target)) || published[service.Ports[0].Published] || service.Ports[0].HostIP != "127.0.0.1" {
				t.Errorf("%s: ports %v", name, service.Ports)
			}
			published[service.Ports[0].Published] = true
			if !strings.Contains(read(t, "../README.md"), "http://localhost:"+service.Ports[0].Published+"/") {
				t.Errorf("README doesn't use port %s", service.Ports[0].Published)
			}
			if service.StopGracePeriod == nil || time.Duration(*service.StopGracePeriod) <= gracePeriod(t) {
				t.Errorf("%s is killed after %v, within its grace period", name, service.StopGracePeriod)
			}
			// where the Caddyfile looks for the password unless it is told otherwise
			if len(service.Secrets) != 1 || "/run/secrets/"+service.Secrets[0].Source != find(t, "Caddyfile", `\{\$REDIS_PASSWORD_FILE:([^}]+)\}`) {
				t.Errorf("%s: secrets %v", name, service.Secrets)
			}
			if _, err := os.Stat(project.Secrets[service.Secrets[0].Source].File); err != nil {
				t.Error(err)
			}
			if _, err := os.Stat(filepath.Join(dir, "..", "deploy", "Dockerfile")); err != nil || service.Build.Dockerfile != "deploy/Dockerfile" {
				t.Errorf("%s: Dockerfile %s: %v", name, service.Build.Dockerfile, err)
			}
		}
	}
	if redis != 5 || caddies != 2 {
		t.Errorf("%d masters and %d Caddys", redis, caddies)
	}
}
