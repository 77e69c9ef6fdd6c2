#!/usr/bin/env bash
# Builds a Traefik for try.sh from its Go module, without the providers but that of files, which take most of the time:
#
#   examples/traefik/build.sh OUTPUT [VERSION]
set -euo pipefail
output=$(realpath "$1")
version=${2:-v3.7.13}
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
source=$(cd "$tmp" && go mod download -json "github.com/traefik/traefik/v3@$version" | sed -n 's/^\t"Dir": "\(.*\)",$/\1/p')
cp -r "$source"/{go.mod,go.sum,cmd,pkg,internal} "$tmp"
mkdir "$tmp/webui" && cp -r "$source"/webui/{embed.go,static} "$tmp/webui"
chmod -R u+w "$tmp"
cd "$tmp/pkg/provider"

stub() { # folder package declarations
	rm -rf "$1" && mkdir -p "$1"
	cat >"$1/stub.go" <<-GO
		package $2

		import (
			"github.com/traefik/paerser/types"
			"github.com/traefik/traefik/v3/pkg/config/dynamic"
			"github.com/traefik/traefik/v3/pkg/safe"
		)

		const ProviderName = "$2"

		var _ types.Duration

		func (*Provider) Init() error                                        { return nil }
		func (*Provider) Provide(chan<- dynamic.Message, *safe.Pool) error { return nil }

		$3
	GO
}
plain='type Provider struct{}'
builder="$plain; type ProviderBuilder struct{}; func (*ProviderBuilder) BuildProviders() []*Provider { return nil }"
rm -rf kubernetes kv
stub kubernetes/crd crd "$plain; func (*Provider) FillExtensionBuilderRegistry(any) {}"
# shellcheck disable=SC2016 # these are Go's, not the shell's
stub kubernetes/gateway gateway 'type Entrypoint struct { Address string; HasHTTPTLSConf bool }; type Provider struct { EntryPoints map[string]Entrypoint `file:"-" label:"-"` }'
stub kubernetes/ingress ingress 'type Provider struct { DefaultRuleSyntax string }'
stub kubernetes/ingress-nginx ingressnginx 'type Provider struct { NonTLSEntryPoints []string; WatchNamespace, WatchNamespaceSelector string }'
stub kubernetes/knative knative "$plain"
stub docker docker 'const SwarmName, DockerName = "swarm", "docker"; type Provider struct { HTTPClientTimeout int }; type SwarmProvider struct { Provider; RefreshSeconds types.Duration }'
stub ecs ecs "$plain"
stub consulcatalog consulcatalog "$builder"
stub nomad nomad "$builder"
stub kv/consul consul "$builder"
stub kv/etcd etcd "$plain"
stub kv/redis redis "$plain"
stub kv/zk zk "$plain"

cd "$tmp"
sed -i '/lego\/v5\/providers\/dns"/d; s/dns.NewDNSChallengeProviderByName(.*)/nil, errors.New("not in this build")/' pkg/provider/acme/provider.go
cat >pkg/types/k8sdetector.go <<'GO'
package types

import (
	"context"

	"go.opentelemetry.io/otel/sdk/resource"
)

type K8sAttributesDetector struct{}

func (K8sAttributesDetector) Detect(context.Context) (*resource.Resource, error) { return resource.Empty(), nil }
GO
# A module of its own that its release lacks, and a fork that the proxy may lack; both don't matter here.
mkdir -p pkg/config/dynamic/ext
printf 'module github.com/traefik/traefik/dynamic/ext\n' >pkg/config/dynamic/ext/go.mod
printf 'package ext\n\ntype HTTP struct{}\ntype Router struct{}\n' >pkg/config/dynamic/ext/ext.go
go mod edit -dropreplace github.com/abbot/go-http-auth -require github.com/abbot/go-http-auth@v0.4.0
sed -i 's/goauth.CheckSecret/func(password, secret string) bool { return password == secret }/' pkg/middlewares/auth/basic_auth.go
sed -i 's/RequireAuthStale/RequireAuth/' pkg/middlewares/auth/digest_auth.go
go build -mod=mod -o "$output" ./cmd/traefik
