// Command suites stores what test suites of others put before their readers, one file for each suite with a document a line, quoted as
// in Go: make suites runs it. It fetches nothing, but reads the checkouts that it finds in a folder.
package main

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"log"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

const longest = 8 << 10

// The cookies have no license that lets them be stored here.
var suites = []struct {
	repository, files, stored string
	documents                 func(data []byte) []string
}{
	{"nst/JSONTestSuite", "test_*/*.json", "test/e2e/testdata/suites/json.gz", func(data []byte) []string { return []string{string(data)} }},
	{"servo/rust-url", "url/tests/urltestdata.json", "test/e2e/testdata/suites/url.gz", urls},
	{"httpwg/structured-field-tests", "*.json", "test/e2e/testdata/suites/structured.gz", fields},
	{"abarth/http-state", "tests/data/parser/*-*", "bin/suites/cookie.gz", cookies},
}

func main() {
	log.SetFlags(0)
	missing := false
	for _, suite := range suites {
		checkout := filepath.Join(os.Args[1], filepath.Base(suite.repository))
		files, err := filepath.Glob(filepath.Join(checkout, suite.files))
		if err != nil {
			log.Fatal(err)
		}
		if len(files) == 0 {
			log.Printf("wants a checkout of https://github.com/%s in %s", suite.repository, checkout)
			missing = true
			continue
		}
		var all []string
		for _, file := range files {
			data, err := os.ReadFile(file)
			if err != nil {
				log.Fatal(err)
			}
			all = append(all, suite.documents(data)...)
		}
		slices.Sort(all)
		store(suite.stored, slices.Compact(all))
	}
	if missing {
		os.Exit(1)
	}
}

func store(file string, documents []string) {
	var stored bytes.Buffer
	zipped, _ := gzip.NewWriterLevel(&stored, gzip.BestCompression) // the level is right
	n := 0
	for _, document := range documents {
		if len(document) <= longest {
			_, _ = zipped.Write([]byte(strconv.Quote(document) + "\n")) // a buffer takes all
			n++
		}
	}
	_ = zipped.Close()
	if err := os.MkdirAll(filepath.Dir(file), 0o777); err != nil {
		log.Fatal(err)
	}
	if err := os.WriteFile(file, stored.Bytes(), 0o666); err != nil {
		log.Fatal(err)
	}
	log.Printf("%s: %d documents of %d, %d bytes", file, n, len(documents), stored.Len())
}

// urls returns what is to be read, and the path and the query that a browser makes of it.
func urls(data []byte) (all []string) {
	var tests []json.RawMessage // comments are among them
	parse(data, &tests)
	for _, test := range tests {
		var u struct{ Input, Pathname, Search string }
		if test[0] == '{' {
			parse(test, &u)
			all = append(all, u.Input, u.Pathname+u.Search)
		}
	}
	return all
}

// fields returns the values of each test, which are lines of one field.
func fields(data []byte) (all []string) {
	var tests []struct{ Raw []string }
	parse(data, &tests)
	for _, test := range tests {
		all = append(all, strings.Join(test.Raw, "\n"))
	}
	return all
}

// cookies returns what a server sets and what a browser sends. A server that reads cookies meets both.
func cookies(data []byte) (all []string) {
	for line := range strings.Lines(string(data)) {
		_, text, _ := strings.Cut(line, ": ")
		all = append(all, strings.TrimRight(text, "\r\n"))
	}
	return all
}

func parse(data []byte, into any) {
	if err := json.Unmarshal(data, into); err != nil {
		log.Fatal(err)
	}
}
