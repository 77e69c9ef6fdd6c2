#!/bin/sh
# Installs what the named upstreams need, such as "express flask+nginx", or all.
set -eu
cd "$(dirname "$0")/../.."
names=$(echo "$*" | tr '+' ' ')
# shellcheck disable=SC2046 # one word for each package
tools/debian.sh $(awk -v names=" $names " '!/^#/ && (names ~ / all / || index(names, " " $1 " ")) { $1 = ""; print }' test/upstreams/packages | tr ' ' '\n' | sort -u)
case " $names " in
*' all '* | *' laravel '*) # which not every release of Debian and Ubuntu has
	if apt-cache show php-laravel-framework >/dev/null 2>&1; then
		tools/debian.sh php-cli php-laravel-framework
	else
		echo 'NOT TESTED: the packages of this system have no Laravel (php-laravel-framework)'
	fi
	;;
esac
tools/npm.sh test/upstreams
case " $names " in
*' all '* | *' nethttp '* | *' chi '* | *' gorilla '* | *' gin '* | *' echo '* | *' fiber '*)
	cd examples/stacks
	go build -o ../../bin/upstreams/go ./upstream
	;;
esac
