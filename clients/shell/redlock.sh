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
# that a shell runs in the background: so Ctrl-C reaches it as TERM, and timeout -s INT doesn't end what it runs. It has no controlling
# terminal, so sudo and ssh can't ask for passwords, and doesn't get the caller's descriptors 3, 4 and 5.
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
	for _program in curl setsid; do
		command -v "$_program" >/dev/null 2>&1 || {
			echo "redlock.sh: $_program is missing" >&2
			exit 69
		}
	done
	{ true 3<&0; } 2>/dev/null || exec </dev/null # where it is closed
	exec 3<&0 # otherwise what runs in the background reads /dev/null
	setsid sh "$0" --own-session "$@" <&3 3<&- &
	_session=$!
	trap '_caught=1; kill -s TERM "$_session"' INT TERM HUP QUIT # what runs in the background ignores INT and QUIT
	trap '_caught=1; kill -s USR1 "$_session"' USR1
	trap '_caught=1; kill -s USR2 "$_session"' USR2
	_code=
	while
		_caught=
		wait "$_session"
		_ended=$?
		[ "$_ended" = 127 ] && [ -n "$_code" ] || _code=$_ended # 127: a signal has come after the end
		[ -n "$_caught" ]
	do :; done
	exit "$_code"
fi
shift

# Names of variables begin with _: the command inherits the caller's own variables, such as an exported key, and they must stay as they are.

# tell says something to the caller.
tell() { printf 'redlock.sh: %s\n' "$1" >&2; }

# finish ends this script and the connection, which releases the lock.
finish() {
	stop_timer
	[ -z "$_curl" ] || kill -s KILL "$_curl" 2>/dev/null
	exit "$1"
}

# fail ends it with an exit code and a reason.
fail() {
	tell "$2"
	finish "$1"
}

# now sets now to the time since the machine was started, in hundredths of a second, also those for which it was suspended.
now() {
	read -r _now _ </proc/uptime
	_now=${_now%.*}${_now#*.}
}

# doze waits until a time, but no more than a second, because sleep stands still while the machine is suspended.
doze() {
	now
	_left=$(($1 - _now))
	[ "$_left" -lt 100 ] || _left=100
	[ "$_left" -le 0 ] || sleep "$((_left / 100)).$((_left / 10 % 10))$((_left % 10))" >/dev/null 2>&1
	now
}

# set_timer has "late" said at a time, and all processes of this session killed at another one. It takes the place of the former one.
set_timer() {
	stop_timer
	(
		trap : TERM
		now
		while [ "$_now" -lt "$1" ]; do doze "$1"; done
		echo late >&5
		while [ "$_now" -lt "$2" ]; do doze "$2"; done
		kill -s KILL 0
	) 3<&- 4<&- &
	_timer=$!
}

stop_timer() {
	[ -z "$_timer" ] || { kill -s KILL "$_timer" && wait "$_timer"; } 2>/dev/null # bash tells of the signal otherwise
	_timer=
}

# pass passes a signal on to the command, and TERM to what the command has started, too. The others here take no notice. While the command starts,
# the signal is kept for it. Before that, it ends the wait.
pass() {
	[ -n "$_held$_lost" ] || finish 143
	case ${_command:+$1} in
	'') _early="$_early $1" ;;
	TERM)
		trap '' TERM
		kill -s TERM 0
		trap 'pass TERM' TERM
		;;
	*) kill -s "$1" "$_command" 2>/dev/null ;;
	esac
}

# lose ends the command because the lock is lost.
lose() {
	[ -z "$_lost" ] || return
	_lost=$1
	tell "the lock is lost: $_lost"
	pass TERM
}

# json prints a text as JSON has it.
json() {
	LC_ALL=C
	_rest=$1 _text=
	while [ -n "$_rest" ]; do
		_more=${_rest#?}
		_char=${_rest%"$_more"}
		case $_char in
		[\"\\]) _text=$_text\\$_char ;;
		[[:cntrl:]]) _text=$_text$(printf '\\u%04x' "'$_char") ;;
		*) _text=$_text$_char ;;
		esac
		_rest=$_more
	done
	printf '"%s"' "$_text"
}

# field sets field to what a line of JSON has under a name: a number, or a text as it is written there.
field() {
	_field=${2#*\""$1"\":}
	case $_field in
	"$2") _field= ;;
	\"*) _field=${_field#\"} _field=${_field%%\"[,\}]*} ;;
	*) _field=${_field%%[,\}]*} ;;
	esac
}

# number fails unless what an option was given is a number of seconds. It sets hundredths to that in hundredths of a second.
number() {
	case $2 in
	'' | . | *[!0-9.]* | *.*.* | ?????????????*) fail 64 "-$1 $2: want a number of seconds without a unit, such as 2 or 0.5" ;;
	esac
	_hundredths=$(LC_ALL=C printf %.0f "${2}e2")
}

# start runs the command in the background. When it has ended, its lock may, too, even if this shell was killed.
start() {
	_held=1
	(
		trap : TERM
		# shellcheck disable=SC2016 # the inner shell reads its own parameters
		sh -c 'echo "runs $$" >&5; exec "$@" 5>&-' sh "$@" <&4 3<&- 4<&-
		_code=$?
		kill -s KILL "$_curl"
		echo "exit $_code" >&5
	) &
}

# take takes a line that the agent has sent.
take() {
	[ "$_agent" = 1 ] || fail 69 "something else than an agent of version 1 answers at $_socket"
	case $_status,$1 in
	200,*'"lost":'*)
		field detail "$1"
		lose "$_field"
		;;
	200,*'"valid_ms":'*)
		field fence "$1"
		[ -z "$_field" ] || export REDLOCK_FENCE="$_field"
		field slot "$1"
		[ -z "$_field" ] || export REDLOCK_SLOT="$_field"
		field valid_ms "$1"
		_end=$((_sent + _field / 10 - 5)) # for how long it takes to be there
		now
		[ -z "$_lost" ] && [ "$_now" -lt "$_end" ] && set_timer $((_end - (_end - _now) / 5)) "$_end"
		;;
	*)
		field detail "$1"
		[ -n "$_field" ] || field title "$1"
		case $_status in
		400) fail 64 "$_field" ;;
		423) fail 75 "$_field; try again in $_retry s" ;;
		503) _again="503: $_field" ;;
		*) fail 69 "$_status: $_field" ;;
		esac
		;;
	esac
}

_usage='want redlock.sh [-w SECONDS] [-t SECONDS] [-m SECONDS] [-c NUMBER] [-v NAME=VALUE] [-p SECONDS] [-s SOCKET] KEY... -- command [argument...]'
_socket=/run/redlock/redlock.sock _patience=1000 _ask='' _wait='' _concurrency='' _values='' _keys='' _locks='' _held='' _lost='' _command='' _early='' _until='' _retry=1 _error='it says nothing' _end=0 _moves=0 _hopes=0 _curl='' _timer=''
while getopts w:t:m:c:v:p:s: _option; do
	case $_option in
	[wtmp]) number "$_option" "$OPTARG" ;;
	esac
	case $_option in
	w) _wait=$_hundredths ;;
	t) _ask="$_ask,\"ttl\":\"${OPTARG}s\"" ;;
	m) _ask="$_ask,\"max_hold\":\"${OPTARG}s\"" ;;
	c)
		case $OPTARG in
		'' | 0* | *[!0-9]*) fail 64 "-c $OPTARG: want a whole number from 1 on, such as 2" ;;
		esac
		_concurrency=${OPTARG#1} _ask="$_ask,\"concurrency\":$OPTARG"
		;;
	v)
		case $OPTARG in
		*=*) _values=$_values,$(json "${OPTARG%%=*}"):$(json "${OPTARG#*=}") ;;
		*) fail 64 "-v $OPTARG: want NAME=VALUE, such as id=42" ;;
		esac
		;;
	p) _patience=$_hundredths ;;
	s) _socket=${OPTARG#unix:} ;;
	*) fail 64 "$_usage" ;;
	esac
done
shift $((OPTIND - 1))
[ -z "$_values" ] || _ask="$_ask,\"values\":{${_values#,}}"

# began prints when a process has begun: another one may have its number later.
began() {
	read -r _stat <"/proc/$1/stat" || return
	# shellcheck disable=SC2086 # its fields
	set -- ${_stat##*) }
	echo "${20}"
} 2>/dev/null

# refuse_own fails if a redlock.sh around this one, which still runs, has this lock from this agent.
refuse_own() {
	while read -r _pid _begun _around; do
		case $_around in
		"$(json "$_socket"),"*",$1,"*)
			[ "$(began "$_pid")" != "$_begun" ] || fail 64 'the redlock.sh around this one holds the lock itself, and would wait for itself: locks are not reentrant'
			;;
		esac
	done <<-END
		${REDLOCK_SH_HELD-}
	END
}

while [ $# -gt 0 ] && [ "$1" != -- ]; do
	_key=$(json "$1")
	_lock=$(printf %s "$_key${_values:+:$_values}" | LC_ALL=C tr '[:upper:]' '[:lower:]') # keys that differ in the case of these letters alone share a lock
	[ -n "$_concurrency" ] || refuse_own "$_lock"
	_keys=$_keys,$_key _locks=$_locks,$_lock
	shift
done
if [ $# -lt 2 ] || [ -z "$_keys" ]; then fail 64 "$_usage"; fi
shift
REDLOCK_SH_HELD="$$ $(began $$) $(json "$_socket"),$_locks,
${REDLOCK_SH_HELD-}"
export REDLOCK_SH_HELD
unset REDLOCK_KEY REDLOCK_SLOT REDLOCK_DEADLINE # of a lock around this one

# All that happens is a line of one pipe: what curl, the timer and the end of the command say.
_pipe=$(mktemp -u)
mkfifo -m 600 "$_pipe" || fail 69 'no pipe can be made'
# shellcheck disable=SC2094 # the children only write: those that are left find a pipe that nobody reads
exec 3<>"$_pipe" 4<&0 5>"$_pipe"
rm "$_pipe"
trap 'pass TERM' TERM
trap 'pass USR1' USR1
trap 'pass USR2' USR2
now
_tells=$((_now + 1000))
[ -z "$_wait" ] || _until=$((_now + _wait))

# hope fails unless more is heard of the agent in time. It says once that the wait is long.
hope() {
	now
	[ "$_now" -lt "$_tells" ] || {
		tell 'still waiting for a lock after 10 s'
		_tells=$((_now + 10000000000))
	}
	_hopes=$((_now + _patience))
	set_timer "$_hopes" $((_now + 10000000000))
}

# hope_again sets moves to when no other agent may take the place of this one any more: for a moment nobody may listen.
hope_again() {
	now
	_moves=${_until:-$((_now + _patience))}
}

# connect asks the agent in the background, for as long as may still be waited.
connect() {
	now
	_pulse=$((_patience * 10 / 3))
	[ "$_pulse" -lt 10000 ] || _pulse=10000
	[ "$_pulse" -ge 10 ] || _pulse=10 # the shortest that agents give
	_sent=$_now _status='' _agent='' _again='' _cause='' _waits=",\"pulse\":\"${_pulse}ms\""
	if [ -n "$_until" ]; then
		_left=$((_until - _now))
		[ "$_left" -gt 0 ] || _left=0
		_waits="$_waits,\"wait\":\"${_left}0ms\""
	fi
	hope
	(
		trap '' INT TERM HUP # the lock ends after the command
		exec curl -q -sSNv -w '\ngone\n' --noproxy '*' --connect-timeout "$((_patience / 100)).$((_patience / 10 % 10))$((_patience % 10))" --unix-socket "$_socket" -H 'Redlock-Agent: 1' -H Expect: \
			-H 'Content-Type: application/json' -d "{\"keys\":[${_keys#,}]$_ask$_waits}" http://redlock/v1/lock
	) </dev/null >&5 2>&1 3<&- 4<&- 5>&- &
	_curl=$!
}
connect

_return=$(printf '\r')
while :; do
	read -r _line <&3 || continue # a signal has ended it
	_line=${_line%"$_return"}
	case $_line in
	'< HTTP/'*) # -v tells headers as they come, and -i with the body
		_status=${_line#< * } _status=${_status%% *} _moves=0
		[ "$_status" != 102 ] || { # of an agent that lives, and has no lock yet
			hope
			hope_again
		}
		;;
	'< Redlock-Agent: 1')
		_agent=1
		hope_again
		;;
	'< Retry-After: '*) _retry=${_line#*: } ;;
	'* Connected to '*) [ "$_moves" -gt 0 ] || hope_again ;;
	'* '*[Ff]ail*': '*) _cause=${_cause:-${_line##*: }} ;; # newer versions of curl say no more than that they couldn't connect
	'curl: '*)
		_error=${_cause:-${_line#*: }}
		[ "$_cause" != 'Permission denied' ] || _error="$_error: the agent's --socket-group and --socket-mode say who may open the socket"
		;;
	'runs '*)
		_command=${_line#* }
		for _signal in $_early; do pass "$_signal"; done
		;;
	'{ ['*) ;; # what -v says of a body
	'{'*)
		take "$_line"
		[ -n "$_held" ] || [ -n "$_lost" ] || [ "$_now" -ge "$_end" ] || start "$@"
		;;
	late | gone)
		now
		[ "$_line" = gone ] || [ -n "$_held" ] || [ "$_now" -ge "$_hopes" ] || continue # of a timer that was set anew meanwhile
		if [ "$_line" = gone ] && [ -z "$_held$_lost" ] && [ "$_now" -lt "$_moves" ]; then
			sleep "$_retry"
			connect
			continue
		fi
		[ "$_line" = gone ] || _error='it has not said in time that the lock is held'
		[ -n "$_held" ] || fail 69 "${_again:-the agent at $_socket: $_error}"
		lose "the agent at $_socket: $_error"
		;;
	'exit '*)
		now
		[ "$_now" -lt "$_end" ] || lose 'it was not certain until the end'
		[ -z "$_lost" ] || finish 70
		finish "${_line#exit }"
		;;
	esac
done
