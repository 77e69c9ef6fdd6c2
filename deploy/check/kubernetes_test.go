package check

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	network "k8s.io/api/networking/v1"
	policy "k8s.io/api/policy/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/intstr"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
)

// objects are those that kubectl apply -k sends, by Kind/name.
func objects(t *testing.T) map[string]runtime.Object {
	t.Helper()
	resources, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), copyOfDeploy(t))
	if err != nil {
		t.Fatal(err)
	}
	text, err := resources.AsYaml()
	if err != nil {
		t.Fatal(err)
	}
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{apps.AddToScheme, core.AddToScheme, network.AddToScheme, policy.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	decoder := serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDeserializer()
	found := make(map[string]runtime.Object)
	for reader := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(text))); ; {
		document, err := reader.Read()
		if errors.Is(err, io.EOF) {
			return found
		}
		if err != nil {
			t.Fatal(err)
		}
		object, kind, err := decoder.Decode(document, nil, nil)
		if err != nil {
			t.Fatalf("%v in\n%s", err, document)
		}
		named := object.(meta.Object)
		if kind.Kind != "Namespace" && named.GetNamespace() != "redlock" {
			t.Errorf("%s %s is in namespace %q", kind.Kind, named.GetName(), named.GetNamespace())
		}
		name := named.GetName()
		if kind.Kind == "ConfigMap" || kind.Kind == "Secret" {
			if i := strings.LastIndex(name, "-"); i > 0 { // the hash
				found[kind.Kind+"/"+name[:i]] = object
			}
		}
		found[kind.Kind+"/"+name] = object
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
func selects(t *testing.T, what string, selector *meta.LabelSelector, pods, others core.PodTemplateSpec) {
	t.Helper()
	s, err := meta.LabelSelectorAsSelector(selector)
	if err != nil || !s.Matches(labels.Set(pods.Labels)) || s.Matches(labels.Set(others.Labels)) {
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
func requireMounts(t *testing.T, found map[string]runtime.Object, pods core.PodTemplateSpec, claims ...core.PersistentVolumeClaim) (targets map[string]bool) {
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
			for key := range get[*core.Secret](t, found, "Secret/"+volume.Secret.SecretName).Data {
				keys[volume.Name][key] = true
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
			t.Errorf("%s mounts %s of volume %s, which doesn't exist", pods.Labels["app"], mount.SubPath, mount.Name)
		}
		used[mount.Name], targets[mount.MountPath] = true, true
	}
	for name := range keys {
		if !used[name] {
			t.Errorf("%s doesn't mount volume %s", pods.Labels["app"], name)
		}
	}
	return targets
}

// requireRestricted: what the Pod Security Standard "restricted", which the namespace enforces, wants.
func requireRestricted(t *testing.T, pods core.PodTemplateSpec) {
	t.Helper()
	pod, container := pods.Spec.SecurityContext, pods.Spec.Containers[0].SecurityContext
	if !*pod.RunAsNonRoot || *pod.RunAsUser == 0 || pod.SeccompProfile.Type != core.SeccompProfileTypeRuntimeDefault ||
		*container.AllowPrivilegeEscalation || container.Capabilities.Drop[0] != "ALL" {
		t.Errorf("%s isn't restricted", pods.Labels["app"])
	}
}

func TestKubernetes(t *testing.T) {
	found := objects(t)
	set := get[*apps.StatefulSet](t, found, "StatefulSet/redis")
	deployment := get[*apps.Deployment](t, found, "Deployment/caddy")
	redis, caddy := set.Spec.Template, deployment.Spec.Template
	selects(t, "the StatefulSet", set.Spec.Selector, redis, caddy)
	selects(t, "the Deployment", deployment.Spec.Selector, caddy, redis)
	for _, pods := range []core.PodTemplateSpec{redis, caddy} {
		requireRestricted(t, pods)
	}
	if enforced := get[*core.Namespace](t, found, "Namespace/redlock").Labels["pod-security.kubernetes.io/enforce"]; enforced != "restricted" {
		t.Errorf("the namespace enforces %q", enforced)
	}

	// never two masters at once
	budget := get[*policy.PodDisruptionBudget](t, found, "PodDisruptionBudget/redis")
	selects(t, "the budget", budget.Spec.Selector, redis, caddy)
	if *budget.Spec.MaxUnavailable != intstr.FromInt32(1) || budget.Spec.MinAvailable != nil {
		t.Errorf("the budget allows %v masters to be away", budget.Spec.MaxUnavailable)
	}
	selects(t, "Caddy's budget", get[*policy.PodDisruptionBudget](t, found, "PodDisruptionBudget/caddy").Spec.Selector, caddy, redis)
	apart := redis.Spec.Affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution[0]
	selects(t, "the anti-affinity", apart.LabelSelector, redis, caddy)
	if apart.TopologyKey != "kubernetes.io/hostname" {
		t.Errorf("masters are apart by %s", apart.TopologyKey)
	}
	if delay := redis.Spec.Containers[0].ReadinessProbe.InitialDelaySeconds; delay <= 31 {
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
	if len(masters) != 5 || caddy.Spec.Containers[0].Env[0].Name != "REDLOCK_MASTERS" || caddy.Spec.Containers[0].Env[0].Value != strings.Join(masters, " ") {
		t.Errorf("Caddy has the masters %s, not %q", caddy.Spec.Containers[0].Env[0].Value, masters)
	}
	public := get[*core.Service](t, found, "Service/caddy")
	selects(t, "Caddy's service", &meta.LabelSelector{MatchLabels: public.Spec.Selector}, caddy, redis)
	container := caddy.Spec.Containers[0]
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
	if path := container.ReadinessProbe.HTTPGet.Path; !strings.Contains(read(t, "../Caddyfile"), "respond "+path+" 200") || path != container.LivenessProbe.HTTPGet.Path {
		t.Errorf("the Caddyfile doesn't answer to the probe %s", path)
	}
	if !strings.HasPrefix(container.Image, "registry.example.com/caddy-redlock:") {
		t.Errorf("the image %s", container.Image)
	}

	// files
	files := requireMounts(t, found, redis, set.Spec.VolumeClaimTemplates...)
	if conf := redis.Spec.Containers[0].Command[1]; !files[conf] || !files[find(t, "redis.conf", `^aclfile (\S+)$`)] {
		t.Errorf("redis-server has %v", files)
	}
	files = requireMounts(t, found, caddy)
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
	rule := get[*network.NetworkPolicy](t, found, "NetworkPolicy/redis")
	selects(t, "the policy", &rule.Spec.PodSelector, redis, caddy)
	selects(t, "its rule", rule.Spec.Ingress[0].From[0].PodSelector, caddy, redis)
	if *rule.Spec.Ingress[0].Ports[0].Port != port || len(rule.Spec.Egress) > 0 || len(rule.Spec.PolicyTypes) != 2 {
		t.Errorf("the policy of the masters: %+v", rule.Spec)
	}
	rule = get[*network.NetworkPolicy](t, found, "NetworkPolicy/caddy")
	selects(t, "Caddy's policy", &rule.Spec.PodSelector, caddy, redis)
	for _, open := range rule.Spec.Ingress[0].Ports {
		if !hasContainerPort(caddy, *open.Port) {
			t.Errorf("Caddy's policy opens port %v", open.Port)
		}
	}
}
