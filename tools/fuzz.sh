#!/bin/sh
# Runs each fuzz target for a time, such as 60s, or for a number of inputs, such as 10000x.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cache=$(go env GOCACHE)/fuzz # go test's
grep -l '^func Fuzz' middleware/*_test.go middleware/internal/*/*_test.go redlock/internal/*/*_test.go | xargs -n 1 dirname | sort -u |
	while read -r folder; do
		go test -c -vet=off -fuzz . -o "$dir/fuzz" "./$folder" # once for all of its targets
		package=$(go list "./$folder")
		# shellcheck disable=SC2013 # words
		for target in $(grep -oh '^func Fuzz[A-Za-z]*' "$folder"/*_test.go | cut -c 6-); do
			status=0
			(cd "$folder" && "$dir/fuzz" -test.run '^$' -test.fuzz "^$target\$" -test.fuzztime "$1" -test.fuzzminimizetime 1s -test.fuzzcachedir "$cache/$package") >"$dir/log" 2>&1 || status=$?
			echo "$folder:$target: $(grep execs "$dir/log" | tail -n 1)"
			# Go 1.26 may report the end of the time as a failure (go.dev/issue/75804): only one with a failing input is real.
			if [ $status != 0 ] && { grep -q 'Failing input' "$dir/log" || ! grep -qx ' *context deadline exceeded' "$dir/log"; }; then
				cat "$dir/log"
				exit 1
			fi
		done
	done
