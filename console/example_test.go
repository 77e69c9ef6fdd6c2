package console_test

import (
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/caddy-redlock/caddy-redlock/console"
	"github.com/caddy-redlock/caddy-redlock/redlock"
)

// Mount it where only operators come, behind your own authentication.
func Example() {
	locker, err := redlock.Open([]string{"memory://"}) // in production, the URLs of three or five servers
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = locker.Close() }()

	mux := http.NewServeMux()
	mux.Handle("/redlock/", http.StripPrefix("/redlock", console.New(func() []*redlock.Locker {
		return []*redlock.Locker{locker}
	})))

	response := httptest.NewRecorder()
	mux.ServeHTTP(response, httptest.NewRequest(http.MethodGet, "http://localhost/redlock/locks", nil))
	fmt.Print(response.Code, " ", response.Body)
	// Output:
	// 200 {"locks":[],"keys":0,"held":0,"waiting":0}
}

// The document has the example, and a section for each type of problem.
func TestDocument(t *testing.T) {
	read := func(name string) string {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	document, example := read("../docs/console.md"), read("example_test.go")
	for _, snippet := range regexp.MustCompile("(?ms)^```go\n(.*?)^```$").FindAllStringSubmatch(document, -1) {
		if !strings.Contains(example, snippet[1]) {
			t.Errorf("docs/console.md shows what is no example:\n%s", snippet[1])
		}
	}
	types := regexp.MustCompile(`problem\("(\w+)"`).FindAllStringSubmatch(read("console.go")+read("api.go"), -1)
	if len(types) < 5 {
		t.Fatalf("found %q", types)
	}
	for _, match := range types {
		if !strings.Contains(document, "\n### "+match[1]+"\n") {
			t.Errorf("docs/console.md has no section %s", match[1])
		}
	}
}
