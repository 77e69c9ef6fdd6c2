package e2e

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// suiteDocuments returns the documents of a suite that make suites has stored. Those of cookies are in bin alone.
func suiteDocuments(t *testing.T, suite string) (documents []string) {
	t.Helper()
	file := filepath.Join("testdata/suites", suite+".gz")
	if suite == "cookie" {
		file = "../../bin/suites/cookie.gz"
	}
	data, err := os.ReadFile(file)
	if os.IsNotExist(err) && suite == "cookie" {
		t.Log("without cookies of a suite: make suites")
		return nil
	} else if err != nil {
		t.Fatal(err)
	}
	unzipped, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	for lines := bufio.NewScanner(unzipped); lines.Scan(); {
		document, err := strconv.Unquote(lines.Text())
		if err != nil {
			t.Fatal(err)
		}
		documents = append(documents, document)
	}
	return documents
}

var memberName = regexp.MustCompile(`"[^"]*"(\s*:)`)

// suiteRequests returns the requests that have a document of a suite where a key is read.
func suiteRequests(t *testing.T, at string) (requests []string) {
	t.Helper()
	add := func(text string) { requests = append(requests, text) }
	switch at {
	case "json":
		for _, text := range suiteDocuments(t, "json") {
			renamed := strings.Replace(text, memberName.FindString(text), `"id":`, 1)
			for _, body := range []string{text, renamed, memberName.ReplaceAllString(text, `"id"$1`), `{"id":` + text + `}`, `{"x":` + text + `,"id":42}`, `{"id":42,"x":` + text + `}`} {
				add(rawRequest("POST", "/x", body, asJSON))
			}
		}
	case "path", "query":
		for _, text := range suiteDocuments(t, "url") {
			if strings.ContainsAny(text, " \r\n") {
				continue // ends a request line
			}
			_, path, ok := strings.Cut(text, "://")
			if i := strings.IndexByte(path, '/'); ok && i >= 0 {
				path = path[i:]
			} else {
				path = "/" + strings.TrimPrefix(text, "/")
			}
			path, query, _ := strings.Cut(path, "?")
			if at == "query" {
				_, value, _ := strings.Cut(query, "=")
				for _, text := range append(strings.Split(path, "/"), query, value) {
					add(rawRequest("GET", "/x?id="+text, ""))
				}
				add(rawRequest("GET", "/x?"+query, ""))
				continue
			}
			for _, segment := range strings.Split(path, "/") {
				add(rawRequest("GET", "/orders/"+segment+"/pay", ""))
			}
			for _, target := range []string{text, path, "/orders" + path + "/pay", "http://shop.example/orders" + path + "/pay"} {
				add(rawRequest("GET", target, ""))
			}
		}
	case "cookie":
		for _, text := range suiteDocuments(t, "cookie") {
			pairs := strings.Split(text, ";")
			for i, pair := range pairs {
				if name, value, ok := strings.Cut(pair, "="); ok {
					renamed := slices.Clone(pairs)
					renamed[i] = strings.Replace(name, strings.TrimSpace(name), "cart_id", 1) + "=" + value
					add(rawRequest("GET", "/x", "", "Cookie: "+strings.Join(renamed, ";")))
				}
			}
		}
	case "header":
		for _, text := range suiteDocuments(t, "structured") {
			add(rawRequest("GET", "/x", "", "X-Customer: "+strings.ReplaceAll(text, "\n", "\r\nX-Customer: ")))
		}
	}
	slices.Sort(requests)
	return slices.Compact(requests)
}

// TestSuites sends the documents of others' suites to the rules, which answer each request. The key of a scalar of JSON is that
// of what encoding/json reads.
func TestSuites(t *testing.T) {
	t.Parallel()
	for _, at := range []string{"json", "path", "query", "cookie", "header"} {
		requests := suiteRequests(t, at)
		refused, keys := 0, 0
		judge(t, at, slices.Values(requests), func(text string, status int, key string) {
			switch {
			case status >= 500:
				t.Errorf("%s: status %d\n%q", at, status, text)
			case status >= 400:
				refused++
			case key != "":
				keys++
			}
			if at != "json" || status >= 400 {
				return
			}
			_, body, _ := strings.Cut(text, "\r\n\r\n")
			if want := folded(t, idOf(body)); want != "" && !slices.Contains(strings.Fields(key), want) {
				t.Errorf("the key %q instead of %q\n%q", key, want, body)
			}
		})
		if t.Logf("%s: of %d requests %d are refused, %d have a key", at, len(requests), refused, keys); len(requests) > 0 && (refused == 0 || keys == 0) {
			t.Errorf("%s: none refused, or none with a key", at)
		}
	}
}

// idOf returns the scalar that encoding/json reads as the member id, or nothing.
func idOf(body string) string {
	var members map[string]json.RawMessage
	if json.Unmarshal([]byte(body), &members) != nil {
		return ""
	}
	var value any
	decoder := json.NewDecoder(bytes.NewReader(members["id"]))
	decoder.UseNumber()
	_ = decoder.Decode(&value) // without the member there is no value
	switch value := value.(type) {
	case string:
		return value
	case json.Number:
		return value.String()
	case bool:
		return strconv.FormatBool(value)
	}
	return ""
}
