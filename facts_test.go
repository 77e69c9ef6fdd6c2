package caddyredlock_test

import (
	"regexp"
	"slices"
	"strings"
	"testing"
)

// facts has for each sentence of README how it begins, and the tests that it would fail if it were not true. One that has a link
// to the place that proves it, or gives advice, needs none.
var facts = []struct{ begins, tests string }{
	{"caddy-redlock is a distributed lock", "TestSimulation TestHistories TestCaddyRunsOneRequestPerKey TestConcurrency TestSlots"},
	{"It prevents race conditions", "TestRecipeOfPayments TestDuplicateDeliveries TestNetHTTPRunsOneRequestPerKey TestPlugin TestJobRunsOnOneMachine TestClientsExclude"},
	{"Requests for a key wait", "TestTwoProcessesTakeTurns TestHeld TestRememberedWebhooks TestIdempotencyKey"},
	{"**Don't use it**", ""},
	{"In a clone", "TestREADMECurls TestTrial"},
	{"It needs Go 1.26", "TestTrial TestDockerInREADME"},
	{"**Caddy**, built with", "TestREADMEModule TestREADMECaddyfile TestKeyCases TestBodyKeysInCaddy"},
	{"**Go**, after", "TestREADMEModule TestGoInREADME TestRecipeGoServer"},
	{"**Traefik**, with", "TestShownSettings TestJobsDocument TestAgentDocument TestCurl TestTrial"},
	{"A Redis that has just started", "TestRestartGuard TestWaitForGuards TestSettingsInDocuments"},
	{"| **One holder**", "TestMutualExclusion TestSimulation TestTorture TestPausedHolder TestConcurrencyAtOnce"},
	{"| **Leases that are renewed**", "TestLeaseIsRenewedWhileHeld TestEndsWithoutTheKeeper TestManyLost"},
	{"| **A fencing token**", "TestFencingToken TestFenceGrowsOverRestarts TestFencingInSQL"},
	{"| **Available**", "TestMinorityKilled TestMinorityHung TestRestartForgetsLocks"},
	{"| **In line**", "TestTwoProcessesTakeTurns TestCallsInLine TestSimulation"},
	{"| **Not guaranteed:**", "TestRemember TestWhatResultsSurvive TestFencingInSQL"},
	{"Redlock is [disputed]", ""},
	{"Each guarantee has", "TestFiguresInREADME TestSectionsInDocuments"},
	{"A lock on three masters", "TestFiguresInREADME"},
	{"- **What do I run?**", "TestNumberOfMasters TestEvictionIsWarnedAbout TestManagedRedis TestOnlyTheseCommands"},
	{"Redis 6.2 to", "TestServersInDocuments"},
	{"- **How do I do this?**", "TestEachRecipeIsRun TestRecipeOfWebhooks TestRecipeOfShopify TestRecipeOfWooCommerce TestLaravel TestRecipeOfAnLLM TestLeaderDies TestMigrating"},
	{"- **It answers 423", "TestOutcomesInDocuments TestOperationsNamesWhatExists TestConsole TestAdminCommands"},
	{"- **How does it work?**", "TestWayOfARequest TestIndexOfDocuments"},
	{"**May I change it", ""},
}

// TestFactsInREADME requires each sentence of README to be among the facts, and their tests to exist.
func TestFactsInREADME(t *testing.T) {
	files, _ := tree(t)
	var tests []string
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			for _, found := range regexp.MustCompile(`(?m)^func (Test\w+)\(`).FindAllStringSubmatch(readFile(t, name), -1) {
				tests = append(tests, found[1])
			}
		}
	}
	text := regexp.MustCompile("(?ms)^```.*?^```$").ReplaceAllString(readFile(t, "README.md"), "")
	text = regexp.MustCompile(`(?m)^(#.*|!?\[!.*|!\[.*|\| \| \||\| --- .*)$`).ReplaceAllString(text, "")
	rest := slices.Clone(facts)
	for line := range strings.Lines(text) {
		for _, sentence := range sentences(line) {
			if len(rest) == 0 || !strings.HasPrefix(sentence, rest[0].begins) {
				t.Fatalf("README says what is not among the facts, or at another place: %s", sentence)
			}
			for name := range strings.FieldsSeq(rest[0].tests) {
				if !slices.Contains(tests, name) {
					t.Errorf("%s does not exist, and was to show: %s", name, sentence)
				}
			}
			rest = rest[1:]
		}
	}
	if len(rest) > 0 {
		t.Errorf("README no longer says: %s", rest[0].begins)
	}
	if lines := strings.Count(readFile(t, "README.md"), "\n"); lines > 80 {
		t.Errorf("README has %d lines, more than a page of 80", lines)
	}
}

// sentences divides a line where the next sentence begins with a capital letter, or with bold text or a link.
func sentences(line string) (found []string) {
	line = strings.TrimSpace(line)
	if line == "" {
		return nil
	}
	for {
		end := regexp.MustCompile(`[a-z0-9)\]]\. (\*\*)?\[?[A-Z]`).FindStringIndex(line)
		if end == nil {
			return append(found, line)
		}
		found = append(found, line[:end[0]+2])
		line = line[end[0]+3:]
	}
}
