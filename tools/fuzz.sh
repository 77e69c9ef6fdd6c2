#!/bin/sh
# Runs each fuzz target for a time, such as 60s.
set -eu
log=$(mktemp)
trap 'rm -f "$log"' EXIT
grep -o '^func Fuzz[A-Za-z]*' middleware/*_test.go middleware/internal/*/*_test.go redlock/internal/*/*_test.go | sed 's|/[^/]*:func | |' |
	while read -r folder target; do
		status=0
		go test -run '^$' -fuzz "^$target\$" -fuzztime "$1" -fuzzminimizetime 1s "./$folder" >"$log" 2>&1 || status=$?
		echo "$folder:$target: $(grep execs "$log" | tail -n 1)"
		# Go 1.26 may report the end of the time as a failure (go.dev/issue/75804): only one with a failing input is real.
		if [ $status != 0 ] && { grep -q 'Failing input' "$log" || ! grep -qx ' *context deadline exceeded' "$log"; }; then
			cat "$log"
			exit 1
		fi
	done
