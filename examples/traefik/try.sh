#!/usr/bin/env bash
# Runs a real Traefik v3 with the plugin from this checkout and an agent, and a Caddy next to it on the same three redis-servers, as docs/traefik.md describes:
#
#   TRAEFIK=/path/to/traefik examples/traefik/try.sh     # default: traefik on the PATH
#
# Needs Go, redis-server and curl, and the ports of these files: 7001 to 7003, 8000, 8080 and 8081 of 127.0.0.1.
set -euo pipefail
cd "$(dirname "$0")"
traefik=${TRAEFIK:-traefik}
command -v "$traefik" >/dev/null || { echo "no Traefik: set TRAEFIK to one, from https://github.com/traefik/traefik/releases" >&2; exit 2; }

tmp=$(mktemp -d)
pids=()
trap 'kill "${pids[@]}" 2>/dev/null || true; wait 2>/dev/null; rm -rf "$tmp" plugins-local' EXIT
start() { # name command...
	"${@:2}" >"$tmp/$1.log" 2>&1 &
	pids+=($!)
}
fail() {
	echo "FAILED: $1" >&2
	tail -n 20 "$tmp/traefik.log" "$tmp/agent.log" "$tmp/caddy.log" >&2
	exit 1
}
pay() { curl -s -o "$tmp/body" -w '%{http_code}' -m 30 -X POST "http://127.0.0.1:$1/orders/$2/pay"; }

for port in 7001 7002 7003; do
	start "redis$port" redis-server --bind 127.0.0.1 --port "$port" --save '' --appendonly no --dir "$tmp"
done
(cd ../.. && go build -o "$tmp/caddy" ./cmd/caddy && go build -o "$tmp/redlock" ./cmd/redlock)
start agent "$tmp/redlock" agent --listen unix:/tmp/redlock-try.sock --restart-guard off \
	--masters redis://127.0.0.1:7001,redis://127.0.0.1:7002,redis://127.0.0.1:7003
start caddy "$tmp/caddy" run --config Caddyfile

# Local-plugin mode: Traefik reads the source below its working folder.
mkdir -p plugins-local/src/github.com/caddy-redlock
ln -s "$(cd ../.. && pwd)" plugins-local/src/github.com/caddy-redlock/caddy-redlock
start traefik "$traefik" --configFile=traefik.yml

"$traefik" version | head -n 1
for port in 8000 8080; do
	for ((i = 0; ; i++)); do
		((i < 60)) || fail "nothing is served on port $port"
		[ "$(pay $port "1$i")" = 200 ] && break
		sleep 0.5
	done
done
echo 'Traefik and Caddy serve a request of 3 s.'

began=$(date +%s%N)
pay 8000 42 >"$tmp/first" &
first=$!
pay 8000 42 >"$tmp/second" &
second=$!
sleep 1
beside=$(pay 8080 42)
wait $first $second
took=$((($(date +%s%N) - began) / 1000000))
echo "Two requests for one order through Traefik: $(cat "$tmp/first") and $(cat "$tmp/second") in $took ms; meanwhile the same order through Caddy: $beside."
[ "$(cat "$tmp/first") $(cat "$tmp/second")" = '200 200' ] || fail 'a request through Traefik was not served'
((took >= 6000)) || fail 'they ran at once'
[ "$beside" = 423 ] || fail 'Caddy did not refuse the key that Traefik held'

began=$(date +%s%N)
pay 8080 42 >"$tmp/first" &
first=$!
sleep 1
pay 8000 42 >"$tmp/second" # waits for Caddy
pay 8000 43 >/dev/null &
pids+=($!)
wait $first
took=$((($(date +%s%N) - began) / 1000000))
echo "One through Caddy: $(cat "$tmp/first"), and one for the same order through Traefik, which waits for it: $(cat "$tmp/second"), in $took ms."
[ "$(cat "$tmp/first") $(cat "$tmp/second")" = '200 200' ] || fail 'a request was not served'
((took >= 6000)) || fail 'they ran at once'
echo OK
