package check

import (
	"context"
	"fmt"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/compose-spec/compose-go/v2/cli"
	"github.com/compose-spec/compose-go/v2/types"
	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	network "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// socketFolder is where the clients look for the agent, unless they are told otherwise.
const socketFolder = "/run/redlock"

// operatorsSocket is for operators alone: no other container has its folder.
const operatorsSocket = "unix:/run/redlock-operators/redlock.sock"

// metricsPort is where Prometheus finds the metrics of each agent.
const metricsPort = "7071"

// agentFiles are those in which an agent is started.
var agentFiles = []string{"agent.compose.yml", "kubernetes/sidecar.yaml", "kubernetes/daemonset.yaml", "systemd/redlock-agent.service"}

// requireFlags requires that all flags in these files are in the help of the agent.
func requireFlags(t *testing.T, help string) {
	t.Helper()
	for _, file := range agentFiles {
		for _, flag := range regexp.MustCompile(`["\s](--[a-z-]+)["\s]`).FindAllStringSubmatch(find(t, file, `(.*redlock"?,? "?agent.*)`), -1) {
			if !strings.Contains(help, flag[1]+" ") {
				t.Errorf("%s: the agent has no flag %s", file, flag[1])
			}
		}
	}
}

// requireLonger requires that an agent is not killed while it waits for those who hold locks.
func requireLonger(t *testing.T, file string, stop time.Duration) {
	t.Helper()
	grace, err := time.ParseDuration(find(t, file, `--grace"?,? "?(\d+s)`))
	if err != nil || stop <= grace {
		t.Errorf("%s: the agent is killed after %v, within its grace of %v: %v", file, stop, grace, err)
	}
}

func TestAgentUnits(t *testing.T) {
	stop, err := strconv.Atoi(find(t, "systemd/redlock-agent.service", `^TimeoutStopSec=(\d+)s$`))
	if err != nil {
		t.Fatal(err)
	}
	requireLonger(t, "systemd/redlock-agent.service", time.Duration(stop)*time.Second)
	if socket := find(t, "systemd/redlock-agent.socket", `^ListenStream=(.*)$`); filepath.Dir(socket) != socketFolder {
		t.Errorf("the socket is %s", socket)
	}
	const unit = "systemd/redlock-agent.service"
	folder, mode := find(t, unit, `^RuntimeDirectory=(.*)$`), find(t, unit, `^RuntimeDirectoryMode=(.*)$`)
	if at := find(t, unit, `--operators (\S+)`); at != operatorsSocket || path.Dir(at) != "unix:/run/"+folder || mode != "0700" {
		t.Errorf("operators are served at %s, in the folder %s of mode %s", at, folder, mode)
	}
	if at := find(t, unit, `--metrics-listen (\S+)`); at != "127.0.0.1:"+metricsPort || !strings.Contains(read(t, "../README.md"), "`http://"+at+"/metrics`") {
		t.Errorf("the metrics are at %s, or README doesn't say so", at)
	}
	if !strings.Contains(read(t, "../README.md"), "`sudo redlock locks --agent "+operatorsSocket+"`") {
		t.Error("README doesn't say how to ask the agent")
	}
}

func TestAgentCompose(t *testing.T) {
	dir := copyOfDeploy(t)
	options, err := cli.NewProjectOptions([]string{filepath.Join(dir, "docker-compose.yml"), filepath.Join(dir, "agent.compose.yml")})
	if err != nil {
		t.Fatal(err)
	}
	project, err := options.LoadProject(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	agent, caddy := project.Services["agent"], project.Services["caddy1"]
	masters := strings.ReplaceAll(*agent.Environment["REDLOCK_MASTERS"], ",", " ")
	if masters != *caddy.Environment["REDLOCK_MASTERS"] || agent.Image != caddy.Image || *agent.Environment["REDLOCK_USERNAME"] != find(t, "Caddyfile", `^\t\tusername (\S+)`) {
		t.Errorf("the agent has the masters %s, or another image or user than Caddy", masters)
	}
	requireLonger(t, "agent.compose.yml", time.Duration(*agent.StopGracePeriod))
	if at := agent.Command[len(agent.Command)-1]; at != "0.0.0.0:"+metricsPort || !strings.Contains(read(t, "../prometheus/prometheus.yml"), `["`+agent.Name+":"+metricsPort+`"]`) {
		t.Errorf("the metrics are at %s, or Prometheus doesn't look for them there", at)
	}
	requireOperators(t, "agent.compose.yml", *agent.Environment["REDLOCK_OPERATORS"], *agent.Environment["REDLOCK_AGENT"])
	if folder, options, _ := strings.Cut(agent.Tmpfs[0], ":"); "unix:"+folder != path.Dir(operatorsSocket) || options != "uid="+find(t, "Dockerfile", `^USER (\d+):`)+",mode=0700" {
		t.Errorf("the folder of the socket for operators: %q", agent.Tmpfs)
	}
	for _, name := range []string{"agent", "php"} {
		i := slices.IndexFunc(project.Services[name].Volumes, func(v types.ServiceVolumeConfig) bool { return v.Target == socketFolder })
		if i < 0 || project.Services[name].Volumes[i].Source != "socket" {
			t.Errorf("%s does not have the socket", name)
		}
	}
	if port := project.Services["php"].Ports[0].Published; !strings.Contains(read(t, "../README.md"), "http://localhost:"+port+"/") {
		t.Errorf("README doesn't use port %s", port)
	}
}

// TestAgentKubernetes reads the sidecar and the DaemonSet, which are not a part of the chart.
func TestAgentKubernetes(t *testing.T) {
	found := rendered(t, "")
	caddy := get[*apps.Deployment](t, found, "Deployment/redlock-caddy").Spec.Template
	allowed := get[*network.NetworkPolicy](t, found, "NetworkPolicy/redlock-redis").Spec.Ingress[0].From[1].PodSelector.MatchLabels
	monitor := get[*monitoring.PodMonitor](t, rendered(t, everything), "PodMonitor/redlock-agents")
	for _, file := range []string{"kubernetes/sidecar.yaml", "kubernetes/daemonset.yaml"} {
		for _, object := range decoded(t, file, read(t, "../"+file)) {
			switch o := object.(type) {
			case *apps.Deployment:
				requireRestricted(t, o.Spec.Template)
				requireScraped(t, file, o.Namespace, o.Spec.Template, o.Spec.Template.Spec.InitContainers[0], monitor)
				requireAgent(t, file, o.Spec.Template, o.Spec.Template.Spec.InitContainers[0], caddy, allowed, "")
			case *apps.DaemonSet:
				requireScraped(t, file, o.Namespace, o.Spec.Template, o.Spec.Template.Spec.Containers[0], monitor)
				requireAgent(t, file, o.Spec.Template, o.Spec.Template.Spec.Containers[0], caddy, allowed, ".redlock")
			}
		}
	}
}

func requireAgent(t *testing.T, file string, pods core.PodTemplateSpec, agent core.Container, caddy core.PodTemplateSpec, allowed labels.Set, namespace string) {
	t.Helper()
	masters := strings.ReplaceAll(strings.ReplaceAll(agent.Env[0].Value, ",", " "), "-redis"+namespace+":", "-redis:")
	if masters != caddy.Spec.Containers[0].Env[0].Value {
		t.Errorf("%s: the masters %s", file, masters)
	}
	if !labels.SelectorFromSet(allowed).Matches(labels.Set(pods.Labels)) {
		t.Errorf("%s: the policy of the masters doesn't allow %v", file, pods.Labels)
	}
	var most int64 // MiB; 8,192 clients take 40 KiB each, and the agent 20 MiB
	if _, err := fmt.Sscanf(env(agent, "GOMEMLIMIT"), "%dMiB", &most); err != nil || most < 8192*40/1024+20 || most<<20 > agent.Resources.Limits.Memory().Value()*9/10 {
		t.Errorf("%s: GOMEMLIMIT %d MiB doesn't fit %v: %v", file, most, agent.Resources.Limits.Memory(), err)
	}
	requireLonger(t, file, time.Duration(*pods.Spec.TerminationGracePeriodSeconds)*time.Second)
	requireOperators(t, file, env(agent, "REDLOCK_OPERATORS"), env(agent, "REDLOCK_AGENT"))
	if !strings.Contains(read(t, "../README.md"), " -- redlock locks`") {
		t.Error("README doesn't say how to ask an agent")
	}
	for name, probe := range map[string]*core.Probe{"startup": agent.StartupProbe, "readiness": agent.ReadinessProbe} {
		want := "/usr/bin/redlock ready --agent unix:" + socketFolder + "/redlock.sock"
		if name == "startup" { // the application doesn't depend on the masters
			want = strings.Replace(want, "ready", "ready --alive", 1)
		}
		if probe != nil && strings.Join(probe.Exec.Command, " ") != want {
			t.Errorf("%s: the %s probe is %q", file, name, probe.Exec.Command)
		}
	}
	if sidecar := len(pods.Spec.InitContainers) > 0; agent.LivenessProbe != nil || sidecar != (agent.StartupProbe != nil) || sidecar == (agent.ReadinessProbe != nil) {
		t.Errorf("%s: an application waits for an agent that answers, and no application for the masters, and nothing ends an agent that is full: %+v", file, agent)
	}
	for _, container := range append(pods.Spec.InitContainers, pods.Spec.Containers...) {
		if !slices.ContainsFunc(container.VolumeMounts, func(m core.VolumeMount) bool { return m.Name == "socket" && m.MountPath == socketFolder }) {
			t.Errorf("%s: %s does not have the socket", file, container.Name)
		}
		if of := slices.ContainsFunc(container.VolumeMounts, func(m core.VolumeMount) bool { return "unix:"+m.MountPath == path.Dir(operatorsSocket) }); of != (container.Name == agent.Name) {
			t.Errorf("%s: %s has the folder of the socket for operators: %t", file, container.Name, of)
		}
		for _, mount := range container.VolumeMounts {
			if !slices.ContainsFunc(pods.Spec.Volumes, func(v core.Volume) bool { return v.Name == mount.Name }) {
				t.Errorf("%s: there is no volume %s", file, mount.Name)
			}
		}
	}
}

// requireScraped requires that Prometheus finds an agent's metrics, with the operator and without.
func requireScraped(t *testing.T, file, namespace string, pods core.PodTemplateSpec, agent core.Container, monitor *monitoring.PodMonitor) {
	t.Helper()
	if at := agent.Command[len(agent.Command)-1]; at != ":"+metricsPort || len(agent.Ports) != 1 || strconv.Itoa(int(agent.Ports[0].ContainerPort)) != metricsPort {
		t.Errorf("%s: the metrics are at %s, and the ports are %v", file, at, agent.Ports)
	}
	selects(t, "the PodMonitor of agents", &monitor.Spec.Selector, pods)
	if endpoint := monitor.Spec.PodMetricsEndpoints[0]; !monitor.Spec.NamespaceSelector.Any || *endpoint.Port != agent.Ports[0].Name || endpoint.Path != "/metrics" || monitor.Labels["release"] != "prometheus" {
		t.Errorf("the PodMonitor of agents: %+v", monitor.Spec)
	}
	_, job, _ := strings.Cut(read(t, "../prometheus/kubernetes.yml"), "job_name: agent\n")
	names := regexp.MustCompile(`names: \[(.*)\]`).FindStringSubmatch(job)
	if !slices.Contains(strings.Split(names[1], ", "), namespace) || !strings.Contains(job, "regex: "+pods.Labels["redlock"]+";"+agent.Ports[0].Name+"\n") {
		t.Errorf("%s: Prometheus doesn't find the agents: %s", file, job)
	}
}

// requireOperators requires that an agent serves operators, and that the commands in its container ask there.
func requireOperators(t *testing.T, file, served, asked string) {
	t.Helper()
	if served != operatorsSocket || asked != operatorsSocket {
		t.Errorf("%s: operators are served at %q, and redlock locks asks at %q", file, served, asked)
	}
}
