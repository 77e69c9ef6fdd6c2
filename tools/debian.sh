#!/bin/sh
# Installs those of the named Debian packages that are missing.
set -eu
missing=
for package; do
	[ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null)" = installed ] || missing="$missing $package"
done
[ -n "$missing" ] || exit 0
command -v apt-get >/dev/null || { echo "install what these packages of Debian have:$missing" >&2; exit 1; }
echo "installing with apt-get:$missing"
# The variables keep apt-get from starting the service of redis-server: the tests start their own servers.
set -- env DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 SYSTEMD_OFFLINE=1 flock /tmp/caddy-redlock.apt apt-get
[ "$(id -u)" = 0 ] || set -- sudo "$@"
"$@" update
# shellcheck disable=SC2086 # one word for each package
"$@" install -y --no-install-recommends $missing
