#!/usr/bin/env bash
# build makes the site in bin/site/dist: the documents of this checkout, and below it, in v0.1 and the like, those of the newest release of each minor version.
set -euo pipefail
cd "$(dirname "$0")/../.."
# The clone may belong to another user, which git refuses otherwise.
git() { command git -c safe.directory='*' "$@"; }

releases=$(git tag --list 'v*.*.*' --sort=-version:refname | grep -v - | awk -F. '!seen[$1 "." $2]++') || true # without -rc.1 and the like
export VERSIONS=
for tag in $releases; do VERSIONS+=" ${tag%.*}"; done

# build makes a part of the site from the documents in bin/site/docs: of a tag, or of none.
build() {
	local folder=${1%.*}
	rm -f bin/site/docs/*.go # go test ./... would find them
	(cd bin/site && TAG=$1 node_modules/.bin/vitepress build --outDir "dist/$folder")
	node tools/site/check.mjs "bin/site/dist/$folder" "/caddy-redlock/$folder${folder:+/}"
}

rm -rf bin/site/docs bin/site/dist
mkdir -p bin/site/.vitepress
cp tools/site/config.mjs bin/site/.vitepress/
cp -r docs bin/site/
build ''
for tag in $releases; do
	rm -r bin/site/docs
	git archive "$tag" docs | tar -x -C bin/site
	build "$tag"
done
