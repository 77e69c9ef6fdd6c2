package doctor

import (
	"cmp"
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/redis/go-redis/v9"
)

// rights are those that a user lacks, as in ACL SETUSER, and what else was wrong with the commands that were tried.
type rights struct {
	missing  []string
	unknown  []string // commands that the server does not know
	refused  error    // why it takes no writes
	notTried []string
}

// tried are the commands that locks need, each with arguments by which it does nothing to a key that isn't there. The key is
// the first argument, where there is one. ACLs are checked before anything else, so the reply shows whether a user may. Rights are
// tried rather than asked for: ACL DRYRUN and ACL GETUSER are for administrators, and unknown to older servers.
var tried = []struct {
	command string
	args    []any
}{
	{"exists", []any{}},
	{"get", []any{}},
	{"del", []any{}},
	{"lindex", []any{0}},
	{"lpop", []any{}},
	{"ltrim", []any{0, 0}},
	{"lset", []any{0, "x"}},
	{"lrem", []any{1, "x"}},
	{"pttl", []any{}},
	{"pexpire", []any{1000}},
	{"zrange", []any{0, 0}},
	{"zscore", []any{"x"}},
	{"zrem", []any{"x"}},
	{"hget", []any{"x"}},
	{"hdel", []any{"x"}},
}

// makers are the commands that would make a key. They are tried on a string, which lasts for a second at most: as it is no list,
// sorted set or hash, they fail and do nothing.
var makers = []struct {
	command string
	args    []any
}{
	{"rpush", []any{"x"}},
	{"zadd", []any{1, "x"}},
	{"hset", []any{"x", "x"}},
}

// tryCommands tries each command of the scripts. INFO and TIME were used before.
func (x *examination) tryCommands(ctx context.Context, cn *redis.Conn) error {
	key := fmt.Sprintf("%s:{%s}", x.Prefix, x.probe)
	pipe := cn.Pipeline()
	var names []string
	try := func(command string, args ...any) {
		names = append(names, command)
		pipe.Do(ctx, append([]any{command}, args...)...)
	}
	for _, t := range tried {
		try(t.command, append([]any{key}, t.args...)...)
	}
	try("exists", x.Prefix+":processes:{processes}")
	try("eval", "return 1", 1, key)
	try("evalsha", strings.Repeat("0", 40), 1, key)
	try("publish", x.channel(), "")
	try("set", key, "x", "PX", 1000)
	if err := x.exec(ctx, pipe, names); err != nil {
		return err
	}
	deletes := !slices.Contains(x.rights.missing, "+del")
	pipe, names = cn.Pipeline(), nil
	for _, m := range makers {
		if x.rights.refused == nil && !slices.Contains(x.rights.missing, "+set") {
			try("set", key, "x", "PX", 1000) // in case the other one is over
		} else if !deletes {
			x.rights.notTried = append(x.rights.notTried, "+"+m.command) // nothing must be left
			continue
		}
		try(m.command, append([]any{key}, m.args...)...)
		if deletes {
			try("del", key)
		}
	}
	return x.exec(ctx, pipe, names)
}

// exec sends what is to be tried, and notes what was refused.
func (x *examination) exec(ctx context.Context, pipe redis.Pipeliner, names []string) error {
	if len(names) == 0 {
		return nil
	}
	cmds, err := pipe.Exec(ctx)
	if err != nil && err != redis.Nil && !isRefusal(err) {
		return err
	}
	for i, cmd := range cmds {
		err := cmd.Err()
		if x.rights.note("+"+names[i], err) || err == nil || err == redis.Nil {
			continue
		}
		text := err.Error()
		for _, r := range refusals {
			if strings.HasPrefix(text, r.begins) && x.rights.refused == nil {
				x.rights.refused = err
			}
		}
	}
	return nil
}

// trySubscribe subscribes on a second connection, as a process does in which something waits. It also shows whether that
// reaches the same server.
func (x *examination) trySubscribe(ctx context.Context, _ *redis.Conn) error {
	cn, hangUp, err := x.connect(ctx)
	if err != nil {
		return err
	}
	defer hangUp()
	if x.info["run_id"] != "" {
		reply, err := cn.Info(ctx, "server").Result()
		if err != nil {
			return err
		}
		for name, value := range infoFields(reply) {
			if name == "run_id" && value != x.info["run_id"] {
				x.otherRun = value
			}
		}
	}
	err = cn.Do(ctx, "subscribe", x.channel()).Err()
	if x.rights.note("+subscribe", err) {
		err = nil
	}
	return err
}

func (x *examination) channel() string { return x.Prefix + ":wake:" + x.probe }

// note notes a reply to a command, and reports whether the user or the server lacks the command.
func (r *rights) note(right string, err error) bool {
	if !isRefusal(err) {
		return false
	}
	text := err.Error()
	switch {
	case strings.HasPrefix(text, "ERR unknown command"):
		r.unknown = append(r.unknown, strings.ToUpper(right[1:]))
	case !strings.HasPrefix(text, "NOPERM"):
		return false
	case deniedCommand.MatchString(text):
		// While a connection is made, this may be another command: SELECT, or CLIENT SETNAME.
		r.missing = append(r.missing, "+"+strings.ToLower(deniedCommand.FindStringSubmatch(text)[1]))
	case strings.Contains(text, "channel"):
		r.missing = append(r.missing, "&")
	case strings.Contains(text, "key"):
		r.missing = append(r.missing, "~")
	default:
		r.missing = append(r.missing, right)
	}
	return true
}

// lacksOthers reports whether rights other than this one are missing.
func (r *rights) lacksOthers(right string) bool {
	return slices.ContainsFunc(r.missing, func(other string) bool { return other != right })
}

// deniedCommand finds the command in the refusals of Redis 6.2, KeyDB, 7 and newer.
var deniedCommand = regexp.MustCompile(`permissions? to run the '([^']+)' command`)

// judgeRights names each right that is missing.
func (x *examination) judgeRights() (findings []Finding) {
	user := cmp.Or(x.optionsUser(), "default")
	r := x.rights
	slices.Sort(r.missing)
	var needed, waking []string
	for _, right := range slices.Compact(r.missing) {
		switch right {
		case "~":
			needed = append(needed, "~"+x.Prefix+":*")
		case "&":
			waking = append(waking, "&"+x.Prefix+":wake:*")
		case "+publish", "+subscribe":
			waking = append(waking, right)
		case "+info":
			if x.Guard > 0 {
				needed = append(needed, right)
			} else {
				findings = append(findings, Finding{Level: Warning, Check: Rights, Text: fmt.Sprintf("the user %s may not use INFO: duplicate servers and replicas go undetected", user),
					Advice: grant(user, right)})
			}
		default:
			needed = append(needed, right)
		}
	}
	if len(needed) > 0 {
		findings = append(findings, Finding{Level: Error, Check: Rights, Text: fmt.Sprintf("the user %s lacks rights that locks need: %s", user, strings.Join(needed, " ")),
			Advice: grant(user, needed...), excludes: true})
	}
	if len(waking) > 0 {
		findings = append(findings, Finding{Level: Warning, Check: Rights, Text: fmt.Sprintf("the user %s lacks rights to wake and be woken, so requests that wait poll: %s", user, strings.Join(waking, " ")),
			Advice: grant(user, waking...)})
	}
	if len(r.notTried) > 0 {
		findings = append(findings, Finding{Level: Note, Check: Rights, Text: "can't be told without leaving a key behind: whether the user " + user + " has " + strings.Join(r.notTried, " "),
			Advice: "Look again when +set and +del are granted."})
	}
	if len(r.unknown) > 0 {
		slices.Sort(r.unknown)
		findings = append(findings, Finding{Level: Error, Check: Rights, Text: "it does not know commands that locks need: " + strings.Join(slices.Compact(r.unknown), " "),
			Advice: "Use Redis 6.2 or newer, or Valkey, without renamed commands, and without a proxy before it.", excludes: true})
	}
	if r.refused != nil && x.info["role"] != "slave" {
		text, advice := whyRefused(r.refused.Error())
		findings = append(findings, Finding{Level: Error, Check: Rights, Text: text, Advice: advice, excludes: true})
	}
	return findings
}

func (x *examination) optionsUser() string {
	if x.options == nil {
		return ""
	}
	return x.options.Username
}

// grant returns the command that grants rights.
func grant(user string, rights ...string) string {
	return "ACL SETUSER " + user + " " + strings.Join(rights, " ")
}
