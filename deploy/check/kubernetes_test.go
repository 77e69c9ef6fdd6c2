package check

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"helm.sh/helm/v4/pkg/chart/common"
	chartutil "helm.sh/helm/v4/pkg/chart/common/util"
	"helm.sh/helm/v4/pkg/chart/v2/lint"
	"helm.sh/helm/v4/pkg/chart/v2/lint/support"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/engine"
	apps "k8s.io/api/apps/v1"
	batch "k8s.io/api/batch/v1"
	core "k8s.io/api/core/v1"
	network "k8s.io/api/networking/v1"
	policy "k8s.io/api/policy/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/intstr"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"
)

// example returns the values in README, with others on top of them.
func example(t *testing.T, more string) map[string]any {
	t.Helper()
	values := make(map[string]any)
	for _, text := range []string{regexp.MustCompile("(?s)```yaml\n(image:.*?)```").FindStringSubmatch(read(t, "../README.md"))[1], more} {
		over := make(map[string]any)
		if err := yaml.UnmarshalStrict([]byte(text), &over); err != nil {
			t.Fatal(err)
		}
		values = loader.MergeMaps(values, over)
	}
	return values
}

// objects are those that helm sends for these values, by Kind/name.
func objects(t *testing.T, values map[string]any) (map[string]runtime.Object, error) {
	t.Helper()
	chart, err := loader.Load("../chart")
	if err != nil {
		t.Fatal(err)
	}
	all, err := chartutil.ToRenderValues(chart, values, common.ReleaseOptions{Name: "redlock", Namespace: "redlock", Revision: 1, IsInstall: true}, common.DefaultCapabilities)
	if err != nil {
		return nil, err
	}
	files, err := engine.Render(chart, all)
	if err != nil {
		return nil, err
	}
	found := make(map[string]runtime.Object)
	for name, text := range files {
		for _, object := range decoded(t, name, text) {
			named := object.(meta.Object)
			if named.GetNamespace() != "" { // it is the release's
				t.Errorf("%s %s is in namespace %q", name, named.GetName(), named.GetNamespace())
			}
			key := object.GetObjectKind().GroupVersionKind().Kind + "/" + named.GetName()
			if found[key] != nil {
				t.Errorf("%s: there are two %s", name, key)
			}
			found[key] = object
		}
	}
	return found, nil
}

// rendered is objects for values that are right.
func rendered(t *testing.T, more string) map[string]runtime.Object {
	t.Helper()
	found, err := objects(t, example(t, more))
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// decoded reads the objects of a file as strictly as it can be done without a cluster.
func decoded(t *testing.T, name, text string) (objects []runtime.Object) {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{apps.AddToScheme, batch.AddToScheme, core.AddToScheme, monitoring.AddToScheme, network.AddToScheme, policy.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	decoder := serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDeserializer()
	for reader := utilyaml.NewYAMLReader(bufio.NewReader(strings.NewReader(text))); ; {
		document, err := reader.Read()
		if errors.Is(err, io.EOF) {
			return objects
		}
		if err != nil {
			t.Fatal(err)
		}
		if !regexp.MustCompile(`(?m)^kind:`).Match(document) { // nothing but comments
			continue
		}
		object, _, err := decoder.Decode(document, nil, nil)
		if err != nil {
			t.Fatalf("%s: %v in\n%s", name, err, document)
		}
		objects = append(objects, object)
	}
}

func get[T runtime.Object](t *testing.T, found map[string]runtime.Object, name string) T {
	t.Helper()
	object, ok := found[name].(T)
	if !ok {
		t.Fatalf("there is no %s", name)
	}
	return object
}

// selects requires a selector to choose these pods, and no others.
func selects(t *testing.T, what string, selector *meta.LabelSelector, pods core.PodTemplateSpec, others ...core.PodTemplateSpec) {
	t.Helper()
	s, err := meta.LabelSelectorAsSelector(selector)
	if err != nil || !s.Matches(labels.Set(pods.Labels)) || slices.ContainsFunc(others, func(p core.PodTemplateSpec) bool { return s.Matches(labels.Set(p.Labels)) }) {
		t.Errorf("%s selects %v: %v", what, selector, err)
	}
}

func hasContainerPort(pods core.PodTemplateSpec, port intstr.IntOrString) bool {
	for _, p := range pods.Spec.Containers[0].Ports {
		if p.Name == port.StrVal || p.ContainerPort == port.IntVal {
			return true
		}
	}
	return false
}

// requireMounts: each mount is of a volume of the pod, each volume is mounted, and what is mounted exists.
func requireMounts(t *testing.T, found map[string]runtime.Object, secrets map[string]bool, pods core.PodTemplateSpec, claims ...core.PersistentVolumeClaim) (targets map[string]bool) {
	t.Helper()
	keys := make(map[string]map[string]bool) // of each volume
	for _, volume := range pods.Spec.Volumes {
		keys[volume.Name] = make(map[string]bool)
		switch {
		case volume.ConfigMap != nil:
			for key := range get[*core.ConfigMap](t, found, "ConfigMap/"+volume.ConfigMap.Name).Data {
				keys[volume.Name][key] = true
			}
		case volume.Secret != nil:
			for made := range secrets {
				if key, is := strings.CutPrefix(made, volume.Secret.SecretName+"/"); is {
					keys[volume.Name][key] = true
				}
			}
		}
	}
	for _, claim := range claims {
		keys[claim.Name] = make(map[string]bool)
	}
	targets = make(map[string]bool)
	used := make(map[string]bool)
	for _, mount := range pods.Spec.Containers[0].VolumeMounts {
		if volume, ok := keys[mount.Name]; !ok || mount.SubPath != "" && !volume[mount.SubPath] {
			t.Errorf("%v mounts %s of volume %s, which doesn't exist", pods.Labels, mount.SubPath, mount.Name)
		}
		used[mount.Name], targets[mount.MountPath] = true, true
	}
	for name := range keys {
		if !used[name] {
			t.Errorf("%v doesn't mount volume %s", pods.Labels, name)
		}
	}
	return targets
}

// requireRestricted: what the Pod Security Standard "restricted", which the namespace enforces, wants.
func requireRestricted(t *testing.T, pods core.PodTemplateSpec) {
	t.Helper()
	pod := pods.Spec.SecurityContext
	for _, c := range append(pods.Spec.InitContainers, pods.Spec.Containers...) {
		container := c.SecurityContext
		if !*pod.RunAsNonRoot || *pod.RunAsUser == 0 || pod.SeccompProfile.Type != core.SeccompProfileTypeRuntimeDefault ||
			*container.AllowPrivilegeEscalation || container.Capabilities.Drop[0] != "ALL" {
			t.Errorf("%s of %v isn't restricted", c.Name, pods.Labels)
		}
	}
}

// TestChart: what helm lint says of the chart, with the values in README and with all that may be turned on.
func TestChart(t *testing.T) {
	for _, more := range []string{"", everything, "masters: [redis://10.0.0.1:6379]"} {
		linter := lint.RunAll("../chart", example(t, more), "redlock")
		for _, message := range linter.Messages {
			if message.Severity > support.InfoSev {
				t.Errorf("%q: %v", more, message)
			}
		}
	}
	for value, want := range map[string]string{ // which error
		"image: registry.example.com/caddy-redlock:v1": "image",
		"redis: {image: 'redis:8'}":                    "image",
		"redis: {replicas: 4}":                         "replicas",
		"replica: 3":                                   "replica",
		"masters: [10.0.0.1]":                          "masters",
		"masters: ['memory://']":                       "masters",
		"masters: ['redis-sentinel://10.0.0.1:26379']": "masters",
		"metrics: {podMonitor: true}":                  "from", // it would get nothing
	} {
		if _, err := objects(t, example(t, value)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", value, err)
		}
	}
	if _, err := objects(t, nil); err == nil { // without an image
		t.Error("the chart has an image of its own")
	}
}

// TestPodFields: the values refuse each field of a pod that the chart writes itself, as the YAML would have it twice.
func TestPodFields(t *testing.T) {
	fields := make(map[string]bool)
	for _, object := range rendered(t, everything) {
		var spec core.PodSpec
		switch o := object.(type) {
		case *apps.Deployment:
			spec = o.Spec.Template.Spec
		case *apps.StatefulSet:
			spec = o.Spec.Template.Spec
		case *batch.Job:
			spec = o.Spec.Template.Spec
		default:
			continue
		}
		text, err := yaml.Marshal(spec)
		if err != nil {
			t.Fatal(err)
		}
		written := make(map[string]any)
		if err := yaml.Unmarshal(text, &written); err != nil {
			t.Fatal(err)
		}
		delete(written, "nodeSelector") // which everything adds
		for field := range written {
			fields[field] = true
		}
	}
	if !fields["affinity"] || !fields["restartPolicy"] || !fields["topologySpreadConstraints"] {
		t.Errorf("the pods have %v", fields)
	}
	for field := range fields {
		if _, err := objects(t, example(t, "pod: {"+field+": {}}")); err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("pod.%s: %v", field, err)
		}
	}
}

// everything turns on what is off.
const everything = `
caddyfile: "http://:8080 {\n\trespond {$HOME}\n}\n"
metrics: {from: [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: monitoring}}}], podMonitor: true, rules: true, labels: {release: prometheus}}
pod: {nodeSelector: {disk: ssd}}
`

func TestKubernetes(t *testing.T) {
	found := rendered(t, "")
	set := get[*apps.StatefulSet](t, found, "StatefulSet/redlock-redis")
	deployment := get[*apps.Deployment](t, found, "Deployment/redlock-caddy")
	check := get[*batch.Job](t, found, "Job/redlock-check").Spec.Template
	redis, caddy := set.Spec.Template, deployment.Spec.Template
	selects(t, "the StatefulSet", set.Spec.Selector, redis, caddy, check)
	selects(t, "the Deployment", deployment.Spec.Selector, caddy, redis, check)
	for _, pods := range []core.PodTemplateSpec{redis, caddy, check} {
		requireRestricted(t, pods)
	}
	readme := read(t, "../README.md")
	if !strings.Contains(readme, "kubectl label namespace redlock pod-security.kubernetes.io/enforce=restricted\n") {
		t.Error("README's namespace isn't restricted")
	}

	// never two masters at once
	budget := get[*policy.PodDisruptionBudget](t, found, "PodDisruptionBudget/redlock-redis")
	selects(t, "the budget", budget.Spec.Selector, redis, caddy)
	if *budget.Spec.MaxUnavailable != intstr.FromInt32(1) || budget.Spec.MinAvailable != nil {
		t.Errorf("the budget allows %v masters to be away", budget.Spec.MaxUnavailable)
	}
	selects(t, "Caddy's budget", get[*policy.PodDisruptionBudget](t, found, "PodDisruptionBudget/redlock-caddy").Spec.Selector, caddy, redis)
	apart := redis.Spec.Affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution[0]
	selects(t, "the anti-affinity", apart.LabelSelector, redis, caddy)
	if apart.TopologyKey != "kubernetes.io/hostname" {
		t.Errorf("masters are apart by %s", apart.TopologyKey)
	}
	if delay := redis.Spec.Containers[0].ReadinessProbe.InitialDelaySeconds; delay <= 11 { // restart_guard
		t.Errorf("a master is ready after %d s, when it has no vote yet", delay)
	}

	// ports and names
	port := intstr.FromInt32(int32(redisPort(t)))
	service := get[*core.Service](t, found, "Service/"+set.Spec.ServiceName)
	selects(t, "the headless service", &meta.LabelSelector{MatchLabels: service.Spec.Selector}, redis, caddy)
	if service.Spec.ClusterIP != "None" || !service.Spec.PublishNotReadyAddresses || !hasContainerPort(redis, port) {
		t.Errorf("the service of the masters: %+v", service.Spec)
	}
	var masters []string
	for i := range *set.Spec.Replicas {
		masters = append(masters, fmt.Sprintf("redis://%s-%d.%s:%v", set.Name, i, set.Spec.ServiceName, port.IntVal))
	}
	container := caddy.Spec.Containers[0]
	if len(masters) != 5 || env(container, "REDLOCK_MASTERS") != strings.Join(masters, " ") {
		t.Errorf("Caddy has the masters %s, not %q", env(container, "REDLOCK_MASTERS"), masters)
	}
	public := get[*core.Service](t, found, "Service/redlock-caddy")
	selects(t, "Caddy's service", &meta.LabelSelector{MatchLabels: public.Spec.Selector}, caddy, redis, check)
	for _, port := range []intstr.IntOrString{public.Spec.Ports[0].TargetPort, container.ReadinessProbe.HTTPGet.Port, container.LivenessProbe.HTTPGet.Port} {
		if !hasContainerPort(caddy, port) {
			t.Errorf("Caddy has no port %v", port)
		}
	}
	for _, port := range container.Ports {
		if !hasPort(t, port.ContainerPort) {
			t.Errorf("the Caddyfile has no port %d", port.ContainerPort)
		}
	}
	if variable := find(t, "Caddyfile", `\tbind \{\$(\w+):127\.0\.0\.1\}`); env(container, variable) != "0.0.0.0" {
		t.Errorf("the node can't reach Caddy's probes: %s is %q", variable, env(container, variable))
	}

	// A pod is started, kept and sent requests whatever the masters do.
	if path := container.ReadinessProbe.HTTPGet.Path; !strings.Contains(read(t, "../Caddyfile"), "respond "+path+" 200") || path != container.LivenessProbe.HTTPGet.Path {
		t.Errorf("the Caddyfile doesn't answer to the probe %s", path)
	}
	if container.StartupProbe != nil || container.ReadinessProbe.Exec != nil || container.LivenessProbe.Exec != nil || len(caddy.Spec.InitContainers) > 0 {
		t.Error("a Caddy waits for something")
	}

	// What is tried before an upgrade is what the upgrade brings.
	tried := check.Spec.InitContainers[0]
	if tried.Image != container.Image || !reflect.DeepEqual(tried.Env, container.Env) || !reflect.DeepEqual(tried.VolumeMounts, container.VolumeMounts) ||
		tried.RestartPolicy == nil || *tried.RestartPolicy != core.ContainerRestartPolicyAlways || check.Labels["redlock"] != "agent" {
		t.Errorf("the check tries another Caddy: %+v", tried)
	}
	config := func(pods core.PodTemplateSpec) *core.ConfigMap {
		return get[*core.ConfigMap](t, found, "ConfigMap/"+pods.Spec.Volumes[0].ConfigMap.Name)
	}
	if !maps.Equal(config(check).Data, config(caddy).Data) || config(caddy).Data["Caddyfile"] != read(t, "../Caddyfile") {
		t.Error("the check tries another Caddyfile")
	}
	for _, object := range []meta.Object{config(check), get[*batch.Job](t, found, "Job/redlock-check")} {
		if object.GetAnnotations()["helm.sh/hook"] != "pre-upgrade,pre-rollback" { // before a first installation there are no masters
			t.Errorf("%s: %v", object.GetName(), object.GetAnnotations())
		}
	}
	if other := rendered(t, "caddyfile: other"); other["ConfigMap/"+config(caddy).Name] != nil {
		t.Error("another Caddyfile replaces no pods")
	}

	// files
	secrets := make(map[string]bool) // which README has made, as Secret/key
	for _, made := range regexp.MustCompile(`create secret generic (\S+) --from-file deploy/secrets/(\S+)\n`).FindAllStringSubmatch(readme, -1) {
		secrets[made[1]+"/"+made[2]] = true
	}
	files := requireMounts(t, found, secrets, redis, set.Spec.VolumeClaimTemplates...)
	if conf := redis.Spec.Containers[0].Command[1]; !files[conf] || !files[find(t, "redis.conf", `^aclfile (\S+)$`)] {
		t.Errorf("redis-server has %v", files)
	}
	files = requireMounts(t, found, secrets, caddy)
	if !files[find(t, "Dockerfile", `^CMD .*"(/\S+)"\]$`)] || !files[find(t, "Caddyfile", `\{\$REDIS_PASSWORD_FILE:([^}]+)\}`)] {
		t.Errorf("Caddy has %v", files)
	}

	// time and memory
	stops := time.Duration(*caddy.Spec.TerminationGracePeriodSeconds) * time.Second
	if pause := time.Duration(container.Lifecycle.PreStop.Sleep.Seconds) * time.Second; stops <= pause+gracePeriod(t) {
		t.Errorf("Caddy is killed after %v, within its grace period", stops)
	}
	var megabytes int64
	if _, err := fmt.Sscanf(find(t, "redis.conf", `^maxmemory (\d+)mb`), "%d", &megabytes); err != nil || redis.Spec.Containers[0].Resources.Requests.Memory().Value() <= megabytes<<20 {
		t.Errorf("redis-server may have less than %d MB: %v", megabytes, err)
	}

	// network
	rule := get[*network.NetworkPolicy](t, found, "NetworkPolicy/redlock-redis")
	selects(t, "the policy", &rule.Spec.PodSelector, redis, caddy)
	selects(t, "its rule", rule.Spec.Ingress[0].From[0].PodSelector, caddy, redis)
	if *rule.Spec.Ingress[0].Ports[0].Port != port || len(rule.Spec.Egress) > 0 || len(rule.Spec.PolicyTypes) != 2 {
		t.Errorf("the policy of the masters: %+v", rule.Spec)
	}
	rule = get[*network.NetworkPolicy](t, found, "NetworkPolicy/redlock-caddy")
	selects(t, "Caddy's policy", &rule.Spec.PodSelector, caddy, redis)
	if len(rule.Spec.Ingress) != 1 || len(rule.Spec.Ingress[0].Ports) != 1 || rule.Spec.Ingress[0].Ports[0].Port.IntVal != container.Ports[0].ContainerPort {
		t.Errorf("more than the site is open: %+v", rule.Spec.Ingress)
	}
}

// TestMetricsInKubernetes: who may scrape, with the operator and without.
func TestMetricsInKubernetes(t *testing.T) {
	found := rendered(t, everything)
	caddy := get[*apps.Deployment](t, found, "Deployment/redlock-caddy").Spec.Template
	redis := get[*apps.StatefulSet](t, found, "StatefulSet/redlock-redis").Spec.Template
	ops := caddy.Spec.Containers[0].Ports[1]
	rule := get[*network.NetworkPolicy](t, found, "NetworkPolicy/redlock-caddy").Spec.Ingress
	if len(rule) != 2 || rule[1].Ports[0].Port.IntVal != ops.ContainerPort || len(rule[1].From) != 1 {
		t.Errorf("the policy of Caddy: %+v", rule)
	}
	monitor := get[*monitoring.PodMonitor](t, found, "PodMonitor/redlock-caddy")
	selects(t, "the PodMonitor", &monitor.Spec.Selector, caddy, redis)
	endpoint := monitor.Spec.PodMetricsEndpoints[0]
	if *endpoint.Port != ops.Name || !strings.Contains(read(t, "../Caddyfile"), "metrics "+endpoint.Path+"\n") || monitor.Labels["release"] != "prometheus" {
		t.Errorf("the PodMonitor: %+v", endpoint)
	}
	var rules monitoring.PrometheusRuleSpec
	if err := yaml.UnmarshalStrict([]byte(read(t, "../prometheus/redlock.rules.yml")), &rules); err != nil {
		t.Fatal(err)
	}
	if got := get[*monitoring.PrometheusRule](t, found, "PrometheusRule/redlock").Spec; len(rules.Groups) == 0 || !reflect.DeepEqual(got, rules) {
		t.Errorf("the alerts: %+v", got)
	}
	if caddy.Spec.NodeSelector["disk"] != "ssd" || redis.Spec.NodeSelector["disk"] != "ssd" {
		t.Error("the pods lack a field")
	}
	// that of a Prometheus without the operator
	keep := strings.Join([]string{caddy.Labels["app.kubernetes.io/name"], caddy.Labels["app.kubernetes.io/component"], ops.Name}, ";")
	if got := find(t, "prometheus/kubernetes.yml", `regex: (\S+)`); got != keep {
		t.Errorf("Prometheus keeps %s, not %s", got, keep)
	}
}

// TestMastersElsewhere: with masters of one's own the chart brings none.
func TestMastersElsewhere(t *testing.T) {
	masters := "redis://10.0.0.1:6379 rediss://10.0.0.2:6379 valkey://10.0.0.3 valkeys://10.0.0.4 redis-cluster://10.0.0.5 rediss-cluster://10.0.0.6 valkey-cluster://10.0.0.7 valkeys-cluster://10.0.0.8"
	found := rendered(t, "masters: ["+strings.ReplaceAll(masters, " ", ", ")+"]")
	for name := range found {
		if strings.HasSuffix(name, "/redlock-redis") {
			t.Errorf("there is %s", name)
		}
	}
	if got := env(get[*apps.Deployment](t, found, "Deployment/redlock-caddy").Spec.Template.Spec.Containers[0], "REDLOCK_MASTERS"); got != masters {
		t.Errorf("the masters %s", got)
	}
}

func env(container core.Container, name string) string {
	i := slices.IndexFunc(container.Env, func(v core.EnvVar) bool { return v.Name == name })
	if i < 0 {
		return ""
	}
	return container.Env[i].Value
}

// TestDigests: what runs from an image of others is what was tried, whatever its tag is tomorrow.
func TestDigests(t *testing.T) {
	digest := regexp.MustCompile(`@sha256:[0-9a-f]{64}$`)
	for _, file := range []string{"docker-compose.yml", "agent.compose.yml", "chart/values.yaml", "kubernetes/sidecar.yaml", "kubernetes/daemonset.yaml"} {
		for _, match := range regexp.MustCompile(`(?m)^ *image: ([^\s"]+)`).FindAllStringSubmatch(read(t, filepath.Join("..", file)), -1) {
			if image := match[1]; image != "caddy-redlock" && !digest.MatchString(image) { // which the compose file builds
				t.Errorf("%s: %s has no digest", file, image)
			}
		}
	}
	for _, file := range []string{"Dockerfile", "release.Dockerfile"} {
		for _, match := range regexp.MustCompile(`(?m)^FROM (?:--\S+ )?(\S+)`).FindAllStringSubmatch(read(t, filepath.Join("..", file)), -1) {
			if !digest.MatchString(match[1]) && !strings.HasPrefix(match[1], "golang:") {
				t.Errorf("%s: %s has no digest", file, match[1])
			}
		}
	}
}
