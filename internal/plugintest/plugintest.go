// Package plugintest tests the plugin for Traefik on real redis-servers, compiled as well as interpreted by Yaegi.
package plugintest

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/caddy-redlock/caddy-redlock/internal/redistest"
)

// New returns a handler of a plugin, with these settings by name.
type New func(ctx context.Context, next http.Handler, settings map[string]any) (http.Handler, error)

// bound is how long to wait for what happens eventually.
const bound = 30 * time.Second

// Run runs all tests. Each call of load returns a separate plugin, as if it ran in another Traefik.
func Run(t *testing.T, load func(testing.TB) New) {
	for _, test := range []struct {
		name string
		run  func(*testing.T, func(testing.TB) New)
	}{
		{"ExcludesGoProcesses", testExclusion},
		{"MasterHangs", testHung},
		{"MajorityHangsForLong", testHungForLong},
		{"MasterIsKilledAndRestarted", testKilled},
		{"TwoAreRestartedWhileOneIsAway", testNoWitness},
		{"RestartWithOtherNames", testOtherNames},
		{"LeaseIsLost", testLost},
		{"LockIsReleasedByForce", testForced},
		{"LeaseIsRenewed", testRenewed},
		{"RestartGuard", testGuard},
		{"OneVoteForEachServer", testSameServer},
		{"OtherMastersElsewhere", testApart},
		{"ClientLeaves", testClientLeaves},
		{"HandlerPanics", testPanic},
		{"Reloads", testReloads},
		{"Answers", testAnswers},
		{"Trailers", testTrailers},
		{"WrongSettings", testSettings},
		{"KeyCases", testKeyCases},
	} {
		t.Run(test.name, func(t *testing.T) {
			if test.name != "Reloads" { // it counts goroutines
				t.Parallel()
			}
			test.run(t, load)
		})
	}
}

// Fill sets the fields of a plugin's configuration, which may be of an interpreted type.
func Fill(config reflect.Value, settings map[string]any) {
	for name, value := range settings {
		config.Elem().FieldByNameFunc(func(field string) bool { return strings.EqualFold(field, name) }).Set(reflect.ValueOf(value))
	}
}

// with returns settings for these masters; more are names and values.
func with(servers []*redistest.Server, more ...any) map[string]any {
	settings := map[string]any{"masters": redistest.URLs(servers), "key": "order:{path.1}", "restartGuard": "off"}
	for i := 0; i < len(more); i += 2 {
		settings[more[i].(string)] = more[i+1]
	}
	return settings
}

// handler returns a handler of the plugin, which works until the test ends.
func handler(t testing.TB, new New, settings map[string]any, next http.HandlerFunc) http.Handler {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	h, err := new(ctx, next, settings)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func nothing(http.ResponseWriter, *http.Request) {}

// pay sends a request for an order, and returns the answer.
func pay(h http.Handler, order string) *httptest.ResponseRecorder {
	return payIn(context.Background(), h, order)
}

func payIn(ctx context.Context, h http.Handler, order string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/orders/"+order+"/pay", nil).WithContext(ctx))
	return w
}

func wantStatus(t testing.TB, w *httptest.ResponseRecorder, want int) {
	t.Helper()
	if w.Code != want {
		t.Errorf("status %d, want %d: %s", w.Code, want, w.Body)
	}
}

func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(bound); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", bound, what)
		}
	}
}

// served waits until a handler has connected to its masters.
func served(t testing.TB, h http.Handler) {
	t.Helper()
	eventually(t, "a request is served", func() bool { return pay(h, fmt.Sprint("warm", time.Now().UnixNano())).Code == http.StatusOK })
}
