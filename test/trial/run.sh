#!/bin/sh
# The trial: what README says to type, in a Debian that has nothing but curl and Go. Debian's base is made once, in bin/trial; everything else
# is in namespaces of its own, and gone when the trial ends, however it ends. With TRIAL=required, that it can't run is a failure.
set -eu
cd "$(dirname "$0")/../.."
base=bin/trial/base

cannot() {
	echo "NOT TESTED: the trial of README in a bare root, because $1" >&2
	test "${TRIAL:-}" != required
	exit
}

sudo=
if [ "$(id -u)" != 0 ]; then sudo='sudo -n'; fi
namespaces="$sudo unshare --mount --net --pid --fork --kill-child"
$namespaces true 2>/dev/null || cannot 'it needs root, and namespaces for mounts, network and processes'
command -v ip >/dev/null || cannot 'ip (iproute2) is missing'
if ! [ -d "$base" ]; then
	command -v debootstrap >/dev/null || cannot 'debootstrap is missing'
	mkdir -p bin/trial
	$sudo rm -rf "$base.part"
	$sudo debootstrap --variant=minbase --include=curl bookworm "$base.part" >bin/trial/debootstrap.log 2>&1 ||
		cannot "debootstrap can't have Debian's packages: $(tail -n 1 bin/trial/debootstrap.log)"
	$sudo mv "$base.part" "$base"
fi
(cd test && go test -c -o ../bin/trial/test ./trial)
go mod download # no network is needed from here on
# shellcheck disable=SC2046,SC2086 # words
exec $namespaces env "PATH=$PATH" "BASE=$PWD/$base" $(go env GOROOT GOMODCACHE GOCACHE | paste -s -d ' ' | sed 's/^\([^ ]*\) \([^ ]*\) /GOROOT=\1 GOMODCACHE=\2 GOCACHE=/') \
	bin/trial/test -test.v -test.timeout 20m
