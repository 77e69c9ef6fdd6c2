#!/bin/sh
# Run by clients_test.go: takes a lock, and prints what becomes of it.
# shellcheck disable=SC2016 # the shells of the commands read their own parameters
mode=$1
shift
OWN=$(mktemp -d)
export OWN
trap 'rm -r "$OWN"' EXIT
run() { ./redlock.sh -s "$ADDRESS" ${WAIT:+-w "$WAIT"} ${TTL:+-t "$TTL"} ${MAX_HOLD:+-m "$MAX_HOLD"} ${CONCURRENCY:+-c "$CONCURRENCY"} ${PATIENCE:+-p "$PATIENCE"} "$@" 2>"$OWN/said"; }
if [ "$mode" = chaos ]; then # takes the lock again and again, and prints what becomes of it
	while [ ! -e "$STOP" ]; do
		run "$1" -- sh -c '
			echo "$REDLOCK_FENCE" >"$OWN/fence"
			echo "has $REDLOCK_FENCE $(date +%s%3N)"
			for _ in 1 2 3; do
				now=$(date +%s%3N)
				echo "had $REDLOCK_FENCE $now" # who has lost it does not live
				sleep 0.02
			done
			[ $((REDLOCK_FENCE % 10)) -gt 0 ] || sleep 3
			echo "left $REDLOCK_FENCE $(date +%s%3N)"'
		case $? in
		0) echo "freed $(cat "$OWN/fence")" ;;
		70 | 137) echo "lost $(cat "$OWN/fence" 2>"$OWN/new" || echo 0)" ;;
		*) sleep 0.1 ;;
		esac
	done
elif [ "$mode" = count ]; then
	for _ in 1 2 3 4 5; do
		run counter -- sh -c 'n=$(cat "$1"); sleep 0.002; printf %s $((n + 1)) >"$1"' sh "$1" || break
	done
else
	run "$@" -- sh -c '
		echo "held ${REDLOCK_SLOT-$REDLOCK_FENCE}"
		while [ ! -e "$STOP" ]; do
			date +%s%3N >"$OWN/new" # it had the lock at this time
			mv "$OWN/new" "$OWN/before"
			sleep 0.02
		done'
fi
code=$?
said=$(cat "$OWN/said")
case $code in
0) echo 'done' ;;
75) said=${said##*try again in } && echo "refused ${said%% *}" ;;
70 | 137) echo "lost $(cat "$OWN/before" 2>"$OWN/new" || echo 0) $said" ;;
*) echo "error $code $said" ;;
esac
