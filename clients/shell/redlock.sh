#!/bin/sh
# Runs a command under a lock of redlock's agent. Copy this file; it needs Linux, curl and setsid.
#
#     redlock.sh -w 2 order:42 -- ./pay --order 42      # a key, or several that are locked together
#
#     -w SECONDS   how long to wait; 0 doesn't wait     (default: without limit)
#     -t SECONDS   the ttl                              (default: the agent's)
#     -m SECONDS   how long the lock may be held        (default: without limit)
#     -c NUMBER    how many may hold the key at a time  (default: 1)
#     -v NAME=VALUE
#                  a value: the keys are templates, as in a rule, such as customer:{id:id} with -v id=CUS_1
#     -p SECONDS   how long nothing may be heard of the agent            (default: 10)
#     -s SOCKET    the Unix socket of the agent         (default: /run/redlock/redlock.sock)
#
# The command has REDLOCK_FENCE in its environment: a number that is larger than those of all holders before; with -c REDLOCK_SLOT, too,
# from 0 on, and the fence is that of the slot. If the lock is lost, or
# the agent doesn't say in time that it is still held, the command and what it has started get TERM, and KILL before another can have
# the lock. INT, TERM, HUP and QUIT are passed on as TERM, and USR1 and USR2 to the command alone. If this script is killed, the command
# runs on, and has the lock until it ends. One that waits for more than 10 s says so. The command begins with INT and QUIT ignored, as all
# that a shell runs in the background: so Ctrl-C reaches it as TERM, and timeout -s INT doesn't end what it runs.
# Within the command, a redlock.sh without -c, or with -c 1, is refused if one around it has one of its keys, in whichever slot. One with
# -c 2 or more is never refused: it waits for itself if those around it have all slots.
# The exit code is that of the command; 75 if another has the lock, 69 if there is no agent or no quorum, 70 if the lock was lost, 137
# if KILL was needed, and 64 for wrong use. docs/protocol.md says how long a client may believe that it holds a lock.

# What does the work is in a session of its own, which this shell waits for: signals to the group of the caller, as terminals and
# timeout send them, would end curl, and so the lock, before the command.
if [ "${1-}" != --own-session ]; then
	case ${1-} in
	-h | --help)
		sed -n '2,/^$/s/^# \{0,1\}//p' "$0"
		exit
		;;
	esac
	for program in curl setsid; do
		command -v "$program" >/dev/null 2>&1 || {
			echo "redlock.sh: $program is missing" >&2
			exit 69
		}
	done
	{ true 3<&0; } 2>/dev/null || exec </dev/null # where it is closed
	exec 3<&0 # otherwise what runs in the background reads /dev/null
	setsid sh "$0" --own-session "$@" <&3 3<&- &
	session=$!
	trap 'caught=1; kill -s TERM "$session"' INT TERM HUP QUIT # what runs in the background ignores INT and QUIT
	trap 'caught=1; kill -s USR1 "$session"' USR1
	trap 'caught=1; kill -s USR2 "$session"' USR2
	code=
	while
		caught=
		wait "$session"
		ended=$?
		[ "$ended" = 127 ] && [ -n "$code" ] || code=$ended # 127: a signal has come after the end
		[ -n "$caught" ]
	do :; done
	exit "$code"
fi
shift

# tell says something to the caller.
tell() { printf 'redlock.sh: %s\n' "$1" >&2; }

# finish ends this script and the connection, which releases the lock.
finish() {
	stop_timer
	[ -z "${curl-}" ] || kill -s KILL "$curl" 2>/dev/null
	exit "$1"
}

# fail ends it with an exit code and a reason.
fail() {
	tell "$2"
	finish "$1"
}

# now sets now to the time since the machine was started, in hundredths of a second, also those for which it was suspended.
now() {
	read -r now _ </proc/uptime
	now=${now%.*}${now#*.}
}

# doze waits until a time, but no more than a second, because sleep stands still while the machine is suspended.
doze() {
	now
	left=$(($1 - now))
	[ "$left" -lt 100 ] || left=100
	[ "$left" -le 0 ] || sleep "$((left / 100)).$((left / 10 % 10))$((left % 10))" >/dev/null 2>&1
	now
}

# set_timer has "late" said at a time, and all processes of this session killed at another one. It takes the place of the former one.
set_timer() {
	stop_timer
	(
		trap : TERM
		now
		while [ "$now" -lt "$1" ]; do doze "$1"; done
		echo late >&5
		while [ "$now" -lt "$2" ]; do doze "$2"; done
		kill -s KILL 0
	) 3<&- 4<&- &
	timer=$!
}

stop_timer() {
	[ -z "${timer-}" ] || { kill -s KILL "$timer" && wait "$timer"; } 2>/dev/null # bash tells of the signal otherwise
	timer=
}

# pass passes a signal on to the command, and TERM to what the command has started, too. The others here take no notice. While the command starts,
# the signal is kept for it. Before that, it ends the wait.
pass() {
	[ -n "$held$lost" ] || finish 143
	case ${command:+$1} in
	'') early="$early $1" ;;
	TERM)
		trap '' TERM
		kill -s TERM 0
		trap 'pass TERM' TERM
		;;
	*) kill -s "$1" "$command" 2>/dev/null ;;
	esac
}

# lose ends the command because the lock is lost.
lose() {
	[ -z "$lost" ] || return
	lost=$1
	tell "the lock is lost: $lost"
	pass TERM
}

# json prints a text as JSON has it.
json() {
	LC_ALL=C
	rest=$1 text=
	while [ -n "$rest" ]; do
		more=${rest#?}
		char=${rest%"$more"}
		case $char in
		[\"\\]) text=$text\\$char ;;
		[[:cntrl:]]) text=$text$(printf '\\u%04x' "'$char") ;;
		*) text=$text$char ;;
		esac
		rest=$more
	done
	printf '"%s"' "$text"
}

# field sets field to what a line of JSON has under a name: a number, or a text as it is written there.
field() {
	field=${2#*\""$1"\":}
	case $field in
	"$2") field= ;;
	\"*) field=${field#\"} field=${field%%\"[,\}]*} ;;
	*) field=${field%%[,\}]*} ;;
	esac
}

# number fails unless what an option was given is a number of seconds. It sets hundredths to that in hundredths of a second.
number() {
	case $2 in
	'' | . | *[!0-9.]* | *.*.* | ?????????????*) fail 64 "-$1 $2: want a number of seconds without a unit, such as 2 or 0.5" ;;
	esac
	hundredths=$(LC_ALL=C printf %.0f "${2}e2")
}

# start runs the command in the background. When it has ended, its lock may, too, even if this shell was killed.
start() {
	held=1
	(
		trap : TERM
		# shellcheck disable=SC2016 # the inner shell reads its own parameters
		sh -c 'echo "runs $$" >&5; exec "$@" 5>&-' sh "$@" <&4 3<&- 4<&-
		code=$?
		kill -s KILL "$curl"
		echo "exit $code" >&5
	) &
}

# take takes a line that the agent has sent.
take() {
	[ "$agent" = 1 ] || fail 69 "something else than an agent of version 1 answers at $socket"
	case $status,$1 in
	200,*'"lost":'*)
		field detail "$1"
		lose "$field"
		;;
	200,*'"valid_ms":'*)
		field fence "$1"
		[ -z "$field" ] || export REDLOCK_FENCE="$field"
		field slot "$1"
		[ -z "$field" ] || export REDLOCK_SLOT="$field"
		field valid_ms "$1"
		end=$((sent + field / 10 - 5)) # for how long it takes to be there
		now
		[ -z "$lost" ] && [ "$now" -lt "$end" ] && set_timer $((end - (end - now) / 5)) "$end"
		;;
	*)
		field detail "$1"
		[ -n "$field" ] || field title "$1"
		case $status in
		400) fail 64 "$field" ;;
		423) fail 75 "$field; try again in $retry s" ;;
		503) again="503: $field" ;;
		*) fail 69 "$status: $field" ;;
		esac
		;;
	esac
}

usage='want redlock.sh [-w SECONDS] [-t SECONDS] [-m SECONDS] [-c NUMBER] [-v NAME=VALUE] [-p SECONDS] [-s SOCKET] KEY... -- command [argument...]'
socket=/run/redlock/redlock.sock patience=1000 ask='' wait='' concurrency='' values='' keys='' locks='' held='' lost='' command='' early='' until='' retry=1 error='it says nothing' end=0 moves=0 hopes=0
while getopts w:t:m:c:v:p:s: option; do
	case $option in
	[wtmp]) number "$option" "$OPTARG" ;;
	esac
	case $option in
	w) wait=$hundredths ;;
	t) ask="$ask,\"ttl\":\"${OPTARG}s\"" ;;
	m) ask="$ask,\"max_hold\":\"${OPTARG}s\"" ;;
	c)
		case $OPTARG in
		'' | 0* | *[!0-9]*) fail 64 "-c $OPTARG: want a whole number from 1 on, such as 2" ;;
		esac
		concurrency=${OPTARG#1} ask="$ask,\"concurrency\":$OPTARG"
		;;
	v)
		case $OPTARG in
		*=*) values=$values,$(json "${OPTARG%%=*}"):$(json "${OPTARG#*=}") ;;
		*) fail 64 "-v $OPTARG: want NAME=VALUE, such as id=42" ;;
		esac
		;;
	p) patience=$hundredths ;;
	s) socket=${OPTARG#unix:} ;;
	*) fail 64 "$usage" ;;
	esac
done
shift $((OPTIND - 1))
[ -z "$values" ] || ask="$ask,\"values\":{${values#,}}"

# began prints when a process has begun: another one may have its number later.
began() {
	read -r stat <"/proc/$1/stat" || return
	# shellcheck disable=SC2086 # its fields
	set -- ${stat##*) }
	echo "${20}"
} 2>/dev/null

# refuse_own fails if a redlock.sh around this one, which still runs, has this lock from this agent.
refuse_own() {
	while read -r pid begun around; do
		case $around in
		"$(json "$socket"),"*",$1,"*)
			[ "$(began "$pid")" != "$begun" ] || fail 64 'the redlock.sh around this one holds the lock itself, and would wait for itself: locks are not reentrant'
			;;
		esac
	done <<-END
		${REDLOCK_SH_HELD-}
	END
}

while [ $# -gt 0 ] && [ "$1" != -- ]; do
	key=$(json "$1")
	lock=$(printf %s "$key${values:+:$values}" | LC_ALL=C tr '[:upper:]' '[:lower:]') # keys that differ in the case of these letters alone share a lock
	[ -n "$concurrency" ] || refuse_own "$lock"
	keys=$keys,$key locks=$locks,$lock
	shift
done
if [ $# -lt 2 ] || [ -z "$keys" ]; then fail 64 "$usage"; fi
shift
REDLOCK_SH_HELD="$$ $(began $$) $(json "$socket"),$locks,
${REDLOCK_SH_HELD-}"
export REDLOCK_SH_HELD
unset REDLOCK_KEY REDLOCK_SLOT REDLOCK_DEADLINE # of a lock around this one

# All that happens is a line of one pipe: what curl, the timer and the end of the command say.
pipe=$(mktemp -u)
mkfifo -m 600 "$pipe" || fail 69 'no pipe can be made'
# shellcheck disable=SC2094 # the children only write: those that are left find a pipe that nobody reads
exec 3<>"$pipe" 4<&0 5>"$pipe"
rm "$pipe"
trap 'pass TERM' TERM
trap 'pass USR1' USR1
trap 'pass USR2' USR2
now
tells=$((now + 1000))
[ -z "$wait" ] || until=$((now + wait))

# hope fails unless more is heard of the agent in time. It says once that the wait is long.
hope() {
	now
	[ "$now" -lt "$tells" ] || {
		tell 'still waiting for a lock after 10 s'
		tells=$((now + 10000000000))
	}
	hopes=$((now + patience))
	set_timer "$hopes" $((now + 10000000000))
}

# hope_again sets moves to when no other agent may take the place of this one any more: for a moment nobody may listen.
hope_again() {
	now
	moves=${until:-$((now + patience))}
}

# connect asks the agent in the background, for as long as may still be waited.
connect() {
	now
	pulse=$((patience * 10 / 3))
	[ "$pulse" -lt 10000 ] || pulse=10000
	[ "$pulse" -ge 10 ] || pulse=10 # the shortest that agents give
	sent=$now status='' agent='' again='' cause='' waits=",\"pulse\":\"${pulse}ms\""
	if [ -n "$until" ]; then
		left=$((until - now))
		[ "$left" -gt 0 ] || left=0
		waits="$waits,\"wait\":\"${left}0ms\""
	fi
	hope
	(
		trap '' INT TERM HUP # the lock ends after the command
		exec curl -q -sSNv -w '\ngone\n' --noproxy '*' --connect-timeout "$((patience / 100)).$((patience / 10 % 10))$((patience % 10))" --unix-socket "$socket" -H 'Redlock-Agent: 1' -H Expect: \
			-H 'Content-Type: application/json' -d "{\"keys\":[${keys#,}]$ask$waits}" http://redlock/v1/lock
	) </dev/null >&5 2>&1 3<&- 4<&- 5>&- &
	curl=$!
}
connect

return=$(printf '\r')
while :; do
	read -r line <&3 || continue # a signal has ended it
	line=${line%"$return"}
	case $line in
	'< HTTP/'*) # -v tells headers as they come, and -i with the body
		status=${line#< * } status=${status%% *} moves=0
		[ "$status" != 102 ] || { # of an agent that lives, and has no lock yet
			hope
			hope_again
		}
		;;
	'< Redlock-Agent: 1')
		agent=1
		hope_again
		;;
	'< Retry-After: '*) retry=${line#*: } ;;
	'* Connected to '*) [ "$moves" -gt 0 ] || hope_again ;;
	'* '*[Ff]ail*': '*) cause=${cause:-${line##*: }} ;; # newer versions of curl say no more than that they couldn't connect
	'curl: '*)
		error=${cause:-${line#*: }}
		[ "$cause" != 'Permission denied' ] || error="$error: the agent's --socket-group and --socket-mode say who may open the socket"
		;;
	'runs '*)
		command=${line#* }
		for signal in $early; do pass "$signal"; done
		;;
	'{ ['*) ;; # what -v says of a body
	'{'*)
		take "$line"
		[ -n "$held" ] || [ -n "$lost" ] || [ "$now" -ge "$end" ] || start "$@"
		;;
	late | gone)
		now
		[ "$line" = gone ] || [ -n "$held" ] || [ "$now" -ge "$hopes" ] || continue # of a timer that was set anew meanwhile
		if [ "$line" = gone ] && [ -z "$held$lost" ] && [ "$now" -lt "$moves" ]; then
			sleep "$retry"
			connect
			continue
		fi
		[ "$line" = gone ] || error='it has not said in time that the lock is held'
		[ -n "$held" ] || fail 69 "${again:-the agent at $socket: $error}"
		lose "the agent at $socket: $error"
		;;
	'exit '*)
		now
		[ "$now" -lt "$end" ] || lose 'it was not certain until the end'
		[ -z "$lost" ] || finish 70
		finish "${line#exit }"
		;;
	esac
done
