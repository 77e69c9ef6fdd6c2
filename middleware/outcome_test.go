package middleware_test

import (
	"fmt"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/middleware"
)

// A header distinguishes a duplicate from trouble: both are 409.
func TestOutcomeHeader(t *testing.T) {
	t.Parallel()
	l := newLocker(t, live)
	hold(t, l, "42")
	shown := serve(t, middleware.New(l, "{header.Order}", middleware.Rule{})(http.HandlerFunc(ok)))
	for order, want := range map[string]string{"42": "held", "": "missing_key", "43": ""} {
		if got := post(t, shown.URL, "Order", order).Header.Get("Redlock-Outcome"); got != want {
			t.Errorf("%q: %q, want %q", order, got, want)
		}
	}
}

// Outcomes has all of the constants, and metrics have a series of each for some rule.
func TestOutcomes(t *testing.T) {
	t.Parallel()
	var constants, possible []middleware.Outcome
	for _, match := range regexp.MustCompile(`(?m)^\tOutcome\w+ +Outcome = "(\w+)"`).FindAllStringSubmatch(readText(t, "outcome.go"), -1) {
		constants = append(constants, middleware.Outcome(match[1]))
	}
	n := &notes{}
	everything := middleware.Rule{Observer: n, Scope: "{header.Authorization}", IdempotencyKey: "required", Remember: time.Hour, Wait: time.Second, Verify: []middleware.Verify{{Scheme: "github", Secrets: []string{"secret"}}}}
	middleware.New(newLocker(t, live), "{json.id}", everything)
	middleware.New(newLocker(t, live), "{json.id}", middleware.Rule{Observer: n, DryRun: true})
	middleware.NewGuard(middleware.Rule{Observer: n})
	if _, err := middleware.NewRequired(middleware.Rule{Observer: n}, middleware.Requirement{}); err != nil {
		t.Fatal(err)
	}
	for _, can := range n.can {
		possible = append(possible, can.Outcomes...)
	}
	all := middleware.Outcomes()
	for what, lacks := range map[string][]middleware.Outcome{
		"no row in outcomes": without(constants, all),
		"no constant":        without(all, constants),
		"no rule in this test that may have them": without(all, possible),
		"a rule, but no row in outcomes":          without(possible, all),
	} {
		if len(lacks) > 0 {
			t.Errorf("%v: %s", lacks, what)
		}
	}
}

func without(some, others []middleware.Outcome) []middleware.Outcome {
	return slices.DeleteFunc(slices.Clone(some), func(outcome middleware.Outcome) bool { return slices.Contains(others, outcome) })
}

// TestOutcomesInDocuments requires docs/problems.md to have each outcome with its status, and nothing else.
func TestOutcomesInDocuments(t *testing.T) {
	t.Parallel()
	document := readText(t, "../docs/problems.md")
	want := []string{"too_large"} // a part of what replayed is
	for _, outcome := range middleware.Outcomes() {
		if outcome == middleware.OutcomeAcquired { // which is no problem
			continue
		}
		want = append(want, string(outcome))
		_, section, _ := strings.Cut(document, "\n## "+string(outcome)+"\n")
		section, _, _ = strings.Cut(section, "\n## ")
		if status := middleware.StatusOf(outcome); status != 0 && !strings.Contains(section, fmt.Sprintf("**%d**", status)) {
			t.Errorf("docs/problems.md: the section %s has no **%d**", outcome, status)
		}
	}
	var documented []string
	for _, heading := range regexp.MustCompile(`(?m)^## (.*)$`).FindAllStringSubmatch(document, -1) {
		documented = append(documented, heading[1])
	}
	slices.Sort(documented)
	if slices.Sort(want); !slices.Equal(documented, want) {
		t.Errorf("docs/problems.md has\n%v, want\n%v", documented, want)
	}
}

func readText(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
