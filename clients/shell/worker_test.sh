#!/bin/sh
# Run by clients_test.go: takes a lock, and prints what becomes of it.
# shellcheck disable=SC2016 # the shells of the commands read their own parameters
mode=$1
shift
case $mode${TOKEN:+ over TCP} in
hold | compete | nested) ;;
*) # what this client can't
	echo skip
	exit
	;;
esac
trap '' PIPE # as services of systemd have it
OWN=$(mktemp -d "${STOP%/*}/XXXXXX")
export OWN
run() { ./redlock.sh -s "$ADDRESS" ${WAIT:+-w "$WAIT"} ${TTL:+-t "$TTL"} ${MAX_HOLD:+-m "$MAX_HOLD"} ${CONCURRENCY:+-c "$CONCURRENCY"} ${VALUES:+-v "$VALUES"} ${PATIENCE:+-p "$PATIENCE"} "$@" 2>"$OWN/said"; }
if [ "$mode" = compete ]; then # takes the lock again and again, by redlock run where RUN has its flags, and prints what becomes of it
	# shellcheck disable=SC2086 # it is a command with flags
	take() { if [ -n "${RUN-}" ]; then $RUN "$@" 2>"$OWN/said"; else run "$@"; fi; }
	while [ ! -e "$STOP" ]; do
		take "$1" -- sh -c '
			now() { read -r now _ </proc/uptime && now=$(echo "$now" | tr -d .); }
			echo "$REDLOCK_FENCE" >"$OWN/fence"
			now
			echo "has $REDLOCK_FENCE $((now + 1))0000000" # it was known in hundredths of a second
			sleep 0.0$((REDLOCK_FENCE % 10))
			[ $((REDLOCK_FENCE % 10)) -gt 0 ] || sleep 2
			now
			echo "left $REDLOCK_FENCE ${now}0000000"'
		case $? in
		0) echo "freed $(cat "$OWN/fence")" ;;
		70 | 137) echo "lost $(cat "$OWN/fence" 2>"$OWN/new" || echo 0)" ;;
		*) sleep 0.1 ;;
		esac
	done
elif [ "$mode" = nested ]; then
	run "$1" -- ./redlock.sh -s "$ADDRESS" ${WAIT:+-w "$WAIT"} "${2-$1}" -- true
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
said=$(head -n 1 "$OWN/said") # shells tell of signals behind it
case $code in
0) echo 'done' ;;
75) said=${said##*try again in } && echo "refused ${said%% *}" ;;
70 | 137) echo "lost $(cat "$OWN/before" 2>"$OWN/new" || echo 0) $said" ;;
*) echo "error $code $said" ;;
esac
