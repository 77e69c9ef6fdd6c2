#!/bin/sh
# Installs the packages of a folder's package.json in bin, once.
set -eu
folder=$1 target=bin/$(basename "$1")
command -v npm >/dev/null || tools/debian.sh nodejs npm
mkdir -p bin && echo 'module bin' >bin/go.mod # some packages bring Go: ./... doesn't go into another module
cmp -s "$folder/package.json" "$target/installed" && exit
# shellcheck disable=SC2046 # one word for each package
npm install --silent --fetch-retries 2 --fetch-retry-mintimeout 1000 --fetch-retry-maxtimeout 5000 --fetch-timeout 60000 \
	--ignore-scripts --no-audit --no-fund --no-package-lock --prefix "$target" \
	$(sed -n 's/^ *"\(.*\)": "\([^ "]*[0-9.]*\)",*$/\1@\2/p' "$folder/package.json") || {
	echo "npm could not install the packages of $folder/package.json: can its registry be reached?" >&2
	exit 1
}
cp "$folder/package.json" "$target/installed"
