package doctor

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/caddy-redlock/caddy-redlock/internal/base/inside"
)

// rights has the rights that a user lacks, as in ACL SETUSER, and other troubles of the commands that were tried.
type rights struct {
	missing     []string
	unknown     []string // commands that the server does not know
	why, advice string   // why the server takes no writes, and the remedy
}

func rightsOf(x *inside.Examination) (r rights) {
	for _, refusal := range x.Refusals {
		if !r.note(refusal.Command, refusal.Text) && r.why == "" {
			r.why, r.advice = refusal.Why, refusal.Advice
		}
	}
	return r
}

// note notes a server's refusal of a command, and reports whether it is about that command alone.
func (r *rights) note(command, text string) bool {
	switch {
	case strings.HasPrefix(text, "ERR unknown command"):
		r.unknown = append(r.unknown, strings.ToUpper(command))
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
		r.missing = append(r.missing, "+"+command)
	}
	return true
}

// deniedCommand finds the command in a refusal by Redis 6.2, by KeyDB, or by Redis 7 and newer.
var deniedCommand = regexp.MustCompile(`permissions? to run the '([^']+)' command`)

func (x *examination) judgeRights() (findings []Finding) {
	user := cmp.Or(x.User, "default")
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
				findings = append(findings, Finding{Level: Warning, Check: Rights, Text: fmt.Sprintf("the user %s may not use INFO: its version, uptime and memory can't be told, and duplicate servers and replicas go undetected", user),
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
		findings = append(findings, Finding{Level: Warning, Check: Rights, Text: fmt.Sprintf("the user %s lacks rights to wake and be woken, so no request can wait for a lock: %s", user, strings.Join(waking, " ")),
			Advice: grant(user, waking...)})
	}
	if len(x.NotTried) > 0 {
		findings = append(findings, Finding{Level: Note, Check: Rights, Text: "can't be told without leaving a key behind: whether the user " + user + " has " + "+" + strings.Join(x.NotTried, " +"),
			Advice: "Look again when +set and +del are granted."})
	}
	if len(r.unknown) > 0 {
		slices.Sort(r.unknown)
		findings = append(findings, Finding{Level: Error, Check: Rights, Text: "it does not know commands that locks need: " + strings.Join(slices.Compact(r.unknown), " "),
			Advice: "Use Redis 6.2 or newer, or Valkey, without renamed commands, and without a proxy before it.", excludes: true})
	}
	if r.why != "" && x.Role != "slave" {
		findings = append(findings, Finding{Level: Error, Check: Rights, Text: r.why, Advice: sentence(r.advice), excludes: true})
	}
	return findings
}

func grant(user string, rights ...string) string {
	return "ACL SETUSER " + user + " " + strings.Join(rights, " ")
}
