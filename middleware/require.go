package middleware

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/caddy-redlock/caddy-redlock/internal/base/notices"
	"github.com/caddy-redlock/caddy-redlock/internal/base/parts"
	"github.com/caddy-redlock/caddy-redlock/middleware/internal/fold"
)

// requiring is a parts.Requirement whose settings are valid. It checks requests.
type requiring struct {
	want   parts.Requirement
	rule   *compiled
	except []exception
}

// Require returns a handler that serves a request only if a rule around it has locked the request. GET, HEAD and OPTIONS without a body need no lock.
// Put Require around a handler that acts, such as a proxy, if the patterns of the router may miss a request:
//
//	app := middleware.Require(proxy)
//	mux.Handle("POST /orders/{id}/pay", serialize(app))
//	mux.Handle("/", app)
//
// A request without a lock gets 403 with the outcome unlocked. If no rule has taken a request, Require removes the headers that the rules of this
// process set, because the client has sent them.
func Require(next http.Handler) http.Handler {
	q, _ := newRequiring(Rule{Logger: notices.Default()}, parts.Requirement{}) // nothing is wrong with the defaults
	return q.handler(next)
}

// newRequiring checks a parts.Requirement.
func newRequiring(rule Rule, want parts.Requirement) (*requiring, error) {
	rule.Name, rule.DryRun = cmp.Or(rule.Name, "require"), want.DryRun
	q := &requiring{want: want, rule: byDefault(rule)}
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

func (q *requiring) handler(next http.Handler) http.Handler {
	return decided{http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		stripForged(r)
		if refusal := q.Check(r); refusal != nil {
			refusal.Write(w)
			return
		}
		next.ServeHTTP(w, r)
	})}
}

func (q *requiring) Check(r *http.Request) parts.Refusal[Turn] {
	turn, _ := r.Context().Value(turnKey{}).(*Turn)
	refusal := q.judge(r, turn.standing(q.want))
	if refusal == nil {
		return nil
	}
	refusal.turn.Rule = q.rule.Name
	what := "request is refused"
	if q.want.DryRun {
		what = "dry run: the request would have been refused"
	}
	path := cut(q.sent(r).URL.Path, maxShownPath)
	first, _, _ := strings.Cut(strings.TrimPrefix(path, "/"), "/")
	q.rule.logOutcomeOf(string(refusal.turn.Outcome)+" "+first, what, refusal.turn, refusal.err,
		slog.Int("status", refusal.status), slog.String("method", cut(r.Method, maxShownID)), slog.String("path", path))
	if q.want.DryRun {
		if q.rule.Observer != nil {
			q.rule.Observer.Passed(q.rule.Name, refusal.turn.Outcome)
		}
		return nil
	}
	q.rule.observeDone(refusal.turn.Outcome, 0)
	refusal.turn.noteIn(r.Context())
	return refusal
}

func (q *requiring) Expect(r *http.Request, rules []parts.Explanation) parts.Refusal[Turn] {
	var turn *Turn
	for _, explained := range rules {
		e := explained.(explanation)
		turn = &Turn{Rule: e.rule.Name, outer: turn, keys: e.Keys, most: e.most, concurrency: e.rule.Concurrency[0], keyed: e.rule.derive != nil}
		switch refusal, served := e.outcome(); {
		case e.Err == nil || e.rule.DryRun:
			turn.dryRun = true // makes the turn count as locked: the request would have the rule's lock, or the rule is itself a dry run
		case !served:
			return nil // the rule would refuse the request before it comes to the Requirement
		default:
			turn.Outcome, turn.Detail = refusal.turn.Outcome, detailOf(refusal.turn.Outcome, e.Err)
		}
	}
	if refusal := q.judge(r, turn.standing(q.want)); refusal != nil {
		return refusal
	}
	return nil
}

// standing says whether the rules around a requirement have locked a request.
type standing struct {
	held   bool
	lost   error  // the error of a lock that was lost; nil for none
	detail string // the reason why there is no lock
}

const noLock = "no rule has taken a lock for it"

// uncounted says why a lock doesn't count.
func uncounted(want parts.Requirement) string {
	if len(want.Rules) > 0 {
		return "a rule has locked it, but none of the required ones"
	}
	return "a rule has locked it, but only its ID, or a slot beside others"
}

// standing looks for a rule around the requirement whose lock counts.
func (t *Turn) standing(want parts.Requirement) standing {
	s := standing{detail: noLock}
	for ; t != nil && !s.held; t = t.outer {
		switch {
		case !t.counts(want):
			if s.detail == noLock && (t.Lock != nil || t.dryRun) {
				s.detail = uncounted(want)
			}
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

// counts reports whether the lock of a rule is enough for the requirement. If the requirement names no rules, the lock on an ID isn't enough, because
// it excludes only repeats. A slot isn't enough either, because several requests hold the key.
func (t *Turn) counts(want parts.Requirement) bool {
	if len(want.Rules) > 0 {
		return slices.Contains(want.Rules, t.Rule)
	}
	alone := func(key string) bool { return t.mostOf(key) == 1 }
	return t.keyed && (len(t.keys) == 0 && t.Lock == nil && t.concurrency == 1 || slices.ContainsFunc(t.keys, alone))
}

// judge returns the refusal of a request, or nil. It refuses even a locked request if some upstream may take it for a different request, whose key
// isn't locked.
func (q *requiring) judge(r *http.Request, s standing) *refusalError {
	if r.Header == nil { // the request didn't come from a server
		r.Header = make(http.Header)
	}
	body := changesNothing(r.Method) && hasBody(r)
	sent := q.sent(r)
	if asks := upgrades(r); !q.want.All && !asks && !mayChange(sent) && !body {
		return nil
	}
	excepted := q.excepts(sent, body)
	if !body && isPreflight(r) {
		s.detail = "a preflight of CORS needs a lock, too, unless except OPTIONS names its path"
	}
	refusal := newRefusal(OutcomeUnlocked, fold.Error(s.detail))
	switch {
	case s.held, excepted:
		err := cmp.Or(CheckTarget(sent), checkRewrite(r.URL))
		if err == nil && !excepted {
			err = checkPlain(sent.URL)
		}
		if err == nil {
			return nil
		}
		refusal, s.detail = newRefusal(OutcomeUnclearTarget, err), err.Error()
	case s.lost != nil:
		refusal, s.detail = newRefusal(OutcomeLost, s.lost), detailOf(OutcomeLost, s.lost)
	}
	refusal.turn.Detail = s.detail
	return refusal
}

// sent returns the request with the URL that the client has sent, because an upstream may get this URL even if other handlers have changed r.URL.
func (q *requiring) sent(r *http.Request) *http.Request {
	sent := *r
	if sent.URL = q.rule.originalURL(r); sent.URL == nil {
		sent.URL = new(url.URL)
	}
	return &sent
}

// hasBody reports whether a request has a body. If no length is declared, hasBody reads one byte to find out, and puts it back.
func hasBody(r *http.Request) bool {
	if r.ContentLength >= 0 || r.Body == nil || r.Body == http.NoBody {
		return r.ContentLength > 0
	}
	first := make([]byte, 1)
	n, err := io.ReadFull(r.Body, first)
	if err == io.EOF {
		r.Body, r.ContentLength = http.NoBody, 0
		return false
	}
	r.Body = struct {
		io.Reader
		io.Closer
	}{io.MultiReader(bytes.NewReader(first[:n]), r.Body), r.Body}
	return true
}

// errNotPlain is the error for a path that some upstream may read as a different path.
const errNotPlain = fold.Error(`path has other characters than letters, digits and "-_~@:=,", a dot that is not between digits, an escape or an empty segment`)

// plainPath matches a path that each server reads in the same way. A dot may only be between digits, as in a version, because a dot after letters
// could begin the suffix of a script.
var plainPath = regexp.MustCompile(`^(/([A-Za-z_~@:=,-]|[0-9]+(\.[0-9]+)*)+)*/?$`)

func checkPlain(u *url.URL) error {
	if path := u.EscapedPath(); path == "" || !plainPath.MatchString(path) {
		return errNotPlain
	}
	return nil
}

// filePath matches the path of a request that other handlers may have rewritten, and the path of an exception. Unlike plainPath, it allows the dot in
// the name of a file.
var filePath = regexp.MustCompile(`^(/\.?[A-Za-z0-9_~@:=,-]+(\.[A-Za-z0-9_~@:=,-]+)*)*/?$`)

// checkRewrite returns an error if the path has characters that no rewriting handler adds, so that they can only come from the client.
func checkRewrite(u *url.URL) error {
	if u != nil && !filePath.MatchString(u.EscapedPath()) {
		return errNotPlain
	}
	return nil
}

// exception describes requests that need no lock.
type exception struct {
	methods  []string // nil for all
	segments []string
	query    []string // the names of the parameters that the query may have
}

// wildcards are the segments of an exception that stand for any segment of the given characters.
var wildcards = map[string]string{
	"*":    "abcdefghijklmnopqrstuvwxyz0123456789_-",
	"{id}": "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-~",
}

// parseExceptions reads an entry of Except: methods, if there are any, and then paths. Without methods, the exceptions hold for all methods.
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
		odd := func(segment string) bool { return wildcards[segment] == "" && !filePath.MatchString("/"+segment) }
		if !strings.HasPrefix(path, "/") || strings.Contains(path, "//") || hidesRoute(path) || slices.ContainsFunc(e.segments, odd) {
			return nil, fold.Error("want a path in plain characters, in which * and {id} are whole segments, as what is behind the beginning of a path may be another one to the upstream")
		}
		all = append(all, e)
	}
	return all, nil
}

// excepts reports whether a request needs no lock. A request for another protocol than WebSocket always needs a lock.
func (q *requiring) excepts(sent *http.Request, body bool) bool {
	if upgrades(sent) && !isWebSocket(sent) {
		return false
	}
	return slices.ContainsFunc(q.except, func(e exception) bool {
		return (len(e.methods) == 0 || slices.Contains(e.methods, sent.Method) && !body) && e.fits(sent.URL)
	})
}

func (e exception) fits(u *url.URL) bool {
	segments := strings.Split(strings.TrimPrefix(u.EscapedPath(), "/"), "/")
	if !slices.EqualFunc(segments, e.segments, fitsSegment) {
		return false
	}
	for pair := range strings.SplitSeq(u.RawQuery, "&") {
		name, value, _ := strings.Cut(pair, "=")
		if strings.Contains(value, ";") || pair != "" && !slices.Contains(e.query, unescaped(name)) {
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

// ruleHeaders has the FenceHeader and the KeyHeader of each rule in this process.
var ruleHeaders sync.Map

// stripForged removes headers that only a rule may set. It keeps the headers of the rules that have taken the request, because each of these rules
// has replaced the value that the client sent.
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
