package middleware

import (
	"cmp"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/caddy-redlock/caddy-redlock/middleware/internal/fold"
)

// Requirement says which requests need the lock of a rule. The zero value has the defaults.
type Requirement struct {
	// The names of the rules whose locks count, each alone. Default: each rule with a key that one request holds at a time.
	//
	// Name them where a request may come through a rule whose key the client chooses, such as that of a header.
	Rules []string `json:"rules,omitempty"`
	// What needs no lock: `/login /cart/*`, or `GET HEAD /orders/*?page,limit` for these methods alone. A path is taken as it is written, with no
	// other parameters in its query than those that are named.
	//
	// A * is one segment of a-z, 0-9, "_" and "-", which is no other spelling of a route that is written in small letters. An {id} may have
	// capitals, too.
	Except []string `json:"except,omitempty"`
	// `pass` lets requests through that a rule passes without a lock because they have no key. Default: `refuse`.
	OnMissingKey string `json:"on_missing_key,omitempty"`
	// Looks at each request, for upstreams that act on GET, HEAD or OPTIONS. Default: off.
	All bool `json:"all,omitempty"`
	// Refuses nothing, and logs and counts what it would refuse. Default: off.
	DryRun bool `json:"dry_run,omitempty"`
}

// Required is a Requirement whose settings are valid. It checks requests.
type Required struct {
	want   Requirement
	rule   *compiled
	except []exception
}

// Require returns a handler that serves a request only under the lock of a rule around it: any but GET, HEAD and OPTIONS without a body. Put
// it around what acts, such as a proxy, where a request may come that a pattern of the router has missed:
//
//	app := middleware.Require(proxy)
//	mux.Handle("POST /orders/{id}/pay", serialize(app))
//	mux.Handle("/", app)
//
// Others get 403 with the outcome unlocked. The headers of all rules of this process are removed from what no rule has taken.
func Require(next http.Handler) http.Handler {
	q, _ := NewRequired(Rule{Logger: slog.Default()}, Requirement{}) // nothing is wrong with the defaults
	return q.Handler(next)
}

// NewRequired checks a Requirement. Refusals are logged and counted by the rule's Name, Logger and Observer, of which the Name is "require" by default.
func NewRequired(rule Rule, want Requirement) (*Required, error) {
	rule.Name, rule.DryRun = cmp.Or(rule.Name, "require"), want.DryRun
	q := &Required{want: want, rule: byDefault(rule)}
	if on := want.OnMissingKey; on != "" && on != "refuse" && on != Pass {
		return nil, fmt.Errorf("on_missing_key %q: want refuse or pass", on)
	}
	for _, text := range want.Except {
		exceptions, err := parseExceptions(text)
		if err != nil {
			return nil, fmt.Errorf("except %q: %w", text, err)
		}
		q.except = append(q.except, exceptions...)
	}
	q.rule.requires = true
	q.rule.observeBegin()
	return q, nil
}

// Handler is Require with these settings.
func (q *Required) Handler(next http.Handler) http.Handler {
	return decided{http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		stripForged(r)
		if refusal := q.Check(r); refusal != nil {
			refusal.Write(w)
			return
		}
		next.ServeHTTP(w, r)
	})}
}

// Check returns the refusal of a request that may not go on, which is logged and counted, or nil. It removes an offer of h2c.
func (q *Required) Check(r *http.Request) *Refusal {
	turn, _ := r.Context().Value(turnKey{}).(*Turn)
	refusal := q.judge(r, turn.standing(q.want))
	if refusal == nil {
		return nil
	}
	refusal.Turn.Rule = q.rule.Name
	what := "request is refused"
	if q.want.DryRun {
		what = "dry run: the request would have been refused"
	}
	path := cut(q.sent(r).URL.Path, maxShownPath)
	first, _, _ := strings.Cut(strings.TrimPrefix(path, "/"), "/")
	q.rule.logOutcomeOf(string(refusal.Turn.Outcome)+" "+first, what, refusal.Turn, refusal.Err,
		slog.Int("status", refusal.Status), slog.String("method", cut(r.Method, maxShownID)), slog.String("path", path))
	if q.want.DryRun {
		if q.rule.Observer != nil {
			q.rule.Observer.Passed(q.rule.Name, refusal.Turn.Outcome)
		}
		return nil
	}
	q.rule.observeDone(refusal.Turn.Outcome, 0)
	refusal.Turn.noteIn(r.Context())
	return refusal
}

// Expect returns the refusal of a request, or nil, if the locks of these rules are taken for it.
func (q *Required) Expect(r *http.Request, rules []Explanation) *Refusal {
	var turn *Turn
	for _, e := range rules {
		turn = &Turn{Rule: e.rule.Name, outer: turn, keys: e.Keys, most: e.most, concurrency: e.rule.Concurrency[0], keyed: e.rule.derive != nil}
		switch refusal, served := e.outcome(); {
		case e.Err == nil || e.rule.DryRun:
			turn.dryRun = true // it would have its lock, or need none
		case !served:
			return nil // it doesn't come here
		default:
			turn.Outcome, turn.Detail = refusal.Turn.Outcome, detailOf(refusal.Turn.Outcome, e.Err)
		}
	}
	return q.judge(r, turn.standing(q.want))
}

// standing is what the rules around a requirement say of a request.
type standing struct {
	held   bool
	lost   error  // of a lock that was held
	detail string // why it is not held
}

// standing looks for a rule whose lock counts.
func (t *Turn) standing(want Requirement) standing {
	s := standing{detail: "no rule has taken a lock for it"}
	for ; t != nil && !s.held; t = t.outer {
		switch {
		case !t.counts(want):
		case t.Lock != nil:
			s.lost = t.Lock.Err()
			s.held = s.lost == nil
		case t.dryRun, t.Outcome == OutcomeNoQuorum, t.Outcome == OutcomeMissingKey && want.OnMissingKey == Pass:
			s.held = true
		default:
			s.detail = "a rule has let it pass without a lock: " + t.Detail
		}
	}
	return s
}

// counts reports whether the lock of a rule is one that is required: an ID excludes only repeats, and a slot not even these.
func (t *Turn) counts(want Requirement) bool {
	if len(want.Rules) > 0 {
		return slices.Contains(want.Rules, t.Rule)
	}
	alone := func(key string) bool { return t.mostOf(key) == 1 }
	return t.keyed && (len(t.keys) == 0 && t.Lock == nil && t.concurrency == 1 || slices.ContainsFunc(t.keys, alone))
}

// judge returns the refusal of a request, or nil. Where it is let through, no upstream may take it for another one.
func (q *Required) judge(r *http.Request, s standing) *Refusal {
	if r.Header == nil { // a program has made the request
		r.Header = make(http.Header)
	}
	sent := q.sent(r)
	if asks := upgrades(r); !q.want.All && !asks && !MayChange(sent) && !hasBody(r) {
		return nil
	}
	refusal := newRefusal(OutcomeUnlocked, fold.Error(s.detail))
	switch {
	case s.held, q.excepts(sent):
		err := cmp.Or(CheckTarget(sent), checkPlain(sent.URL), checkRewrite(r.URL))
		if err == nil {
			return nil
		}
		refusal, s.detail = newRefusal(OutcomeUnclearTarget, err), err.Error()
	case s.lost != nil:
		refusal, s.detail = newRefusal(OutcomeLost, s.lost), detailOf(OutcomeLost, s.lost)
	}
	refusal.Turn.Detail = s.detail
	return refusal
}

// sent returns the request with the URL that the client has sent: an upstream may be told that one, whatever other handlers have made of it.
func (q *Required) sent(r *http.Request) *http.Request {
	sent := *r
	if sent.URL = q.rule.originalURL(r); sent.URL == nil {
		sent.URL = new(url.URL)
	}
	return &sent
}

func hasBody(r *http.Request) bool {
	return r.ContentLength != 0 && r.Body != nil && r.Body != http.NoBody
}

// errNotPlain reports a path in which some upstream may find another one.
const errNotPlain = fold.Error(`path has other characters than letters, digits and "-_~@:=,", a dot that is not between digits, an escape or an empty segment`)

// plainPath is a path that each server reads in the same way. A dot may be that of a version, never that of a script.
var plainPath = regexp.MustCompile(`^(/([A-Za-z_~@:=,-]|[0-9]+(\.[0-9]+)*)+)*/?$`)

func checkPlain(u *url.URL) error {
	if path := u.EscapedPath(); path == "" || !plainPath.MatchString(path) {
		return errNotPlain
	}
	return nil
}

// plainRewrite is a path to which another handler has rewritten a request. It may have the name of a script in it.
var plainRewrite = regexp.MustCompile(`^(/[A-Za-z0-9_~@:=,-][A-Za-z0-9_~@:=,.-]*)*/?$`)

// checkRewrite finds characters of the client in a path that another handler has made.
func checkRewrite(u *url.URL) error {
	if u != nil && !plainRewrite.MatchString(u.EscapedPath()) {
		return errNotPlain
	}
	return nil
}

// exception is what needs no lock.
type exception struct {
	methods  []string // nil for all
	segments []string
	query    []string // the names of its parameters
}

// wildcards of an exception, and the characters of the segments that they stand for.
var wildcards = map[string]string{
	"*":    "abcdefghijklmnopqrstuvwxyz0123456789_-",
	"{id}": "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-~",
}

// parseExceptions reads methods, and the paths for which they, or all, are without a lock.
func parseExceptions(text string) (all []exception, err error) {
	words := strings.Fields(text)
	first := slices.IndexFunc(words, func(word string) bool { return strings.HasPrefix(word, "/") })
	if first < 0 {
		return nil, fold.Error("want a path such as /login")
	}
	methods := words[:first]
	if slices.ContainsFunc(methods, func(method string) bool { return !changesNothing(method) }) {
		return nil, fold.Error("want GET, HEAD and OPTIONS alone, or no method: frameworks read another one from a form, so a path needs a lock for all others or for none")
	}
	for _, word := range words[first:] {
		path, query, _ := strings.Cut(word, "?")
		e := exception{methods: methods, segments: strings.Split(path[min(1, len(path)):], "/")}
		if query != "" {
			e.query = strings.Split(query, ",")
		}
		odd := func(segment string) bool { return wildcards[segment] == "" && !plainPath.MatchString("/"+segment) }
		if !strings.HasPrefix(path, "/") || strings.Contains(path, "//") || slices.ContainsFunc(e.segments, odd) {
			return nil, fold.Error("want a path in plain characters, in which * and {id} are whole segments, as what is behind the beginning of a path may be another one to the upstream")
		}
		all = append(all, e)
	}
	return all, nil
}

// excepts reports whether a request needs no lock. Only WebSocket is another protocol that it may ask for.
func (q *Required) excepts(sent *http.Request) bool {
	if upgrades(sent) && !isWebSocket(sent) {
		return false
	}
	return slices.ContainsFunc(q.except, func(e exception) bool {
		return (len(e.methods) == 0 || slices.Contains(e.methods, sent.Method) && !hasBody(sent)) && e.fits(sent.URL)
	})
}

func (e exception) fits(u *url.URL) bool {
	segments := strings.Split(strings.TrimPrefix(u.EscapedPath(), "/"), "/")
	if !slices.EqualFunc(segments, e.segments, fitsSegment) {
		return false
	}
	for pair := range strings.SplitSeq(u.RawQuery, "&") {
		name, value, _ := strings.Cut(pair, "=")
		if strings.Contains(value, ";") || pair != "" && !slices.Contains(e.query, name) {
			return false
		}
	}
	return true
}

func fitsSegment(sent, want string) bool {
	if characters := wildcards[want]; characters != "" {
		return sent != "" && strings.Trim(sent, characters) == ""
	}
	return sent == want
}

// ruleHeaders are the names of the headers that rules of this process set, without those that each rule may set.
var ruleHeaders sync.Map

// stripForged removes what only a rule sets, unless a rule around has taken the request and so has removed it before.
func stripForged(r *http.Request) {
	turn, _ := r.Context().Value(turnKey{}).(*Turn)
	var forged []string
	add := func(name string) {
		for t := turn; t != nil; t = t.outer {
			if name == SlotHeader || fold.SameHeader(t.fenceHeader, name) || t.keyHeader != "" && fold.SameHeader(t.keyHeader, name) {
				return
			}
		}
		forged = append(forged, name)
	}
	for _, name := range []string{DefaultFenceHeader, SlotHeader, bestKeyHeader} {
		add(name)
	}
	ruleHeaders.Range(func(name, _ any) bool {
		add(name.(string))
		return true
	})
	StripHeaders(r, forged...)
}
