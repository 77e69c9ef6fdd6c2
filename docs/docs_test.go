// Package docs_test holds the documents against the code.
package docs_test

import (
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestMain has the tests run in the root of the repository.
func TestMain(m *testing.M) {
	if err := os.Chdir(".."); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

// tree returns the files of the repository and the folders of its packages, by their paths from its root. A module
// inside the repository counts as one package.
func tree(t *testing.T) (files, packages []string) {
	t.Helper()
	err := fs.WalkDir(os.DirFS("."), ".", func(name string, entry fs.DirEntry, err error) error {
		switch folder := path.Dir(name); {
		case err != nil:
			return err
		case entry.IsDir() && (name == ".git" || name == "bin"):
			return fs.SkipDir
		case entry.IsDir():
			return nil
		case folder != "." && path.Ext(name) == ".go" && !strings.Contains(name, "/testdata/") && !slices.Contains(packages, folder):
			packages = append(packages, folder)
		}
		files = append(files, name)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range files {
		if module, ok := strings.CutSuffix(name, "/go.mod"); ok {
			packages = slices.DeleteFunc(packages, func(folder string) bool { return strings.HasPrefix(folder, module+"/") })
		}
	}
	return files, packages
}

// TestLayoutInDESIGN requires each folder of the layout to exist, and each package to be in the layout, or in one of its folders of which
// no other part is named.
func TestLayoutInDESIGN(t *testing.T) {
	_, section, _ := strings.Cut(readFile(t, "docs/DESIGN.md"), "\n## Layout\n")
	_, layout, _ := strings.Cut(section, "\n```\n")
	layout, _, found := strings.Cut(layout, "\n```\n")
	if !found {
		t.Fatal("docs/DESIGN.md has no layout")
	}
	var named, divided []string
	for line := range strings.Lines(layout) {
		name, about, _ := strings.Cut(strings.TrimSpace(line), " ")
		if strings.TrimSpace(about) == "" {
			t.Errorf("the layout does not describe %q", name)
		}
		if info, err := os.Stat(name); err != nil || !info.IsDir() || !strings.HasSuffix(name, "/") {
			t.Errorf("%q in the layout is no folder with a slash at its end: %v", name, err)
		}
		folder := path.Clean(name)
		named, divided = append(named, folder), append(divided, path.Dir(folder))
	}
	_, packages := tree(t)
	for _, name := range packages {
		folder := name
		for !slices.Contains(named, folder) && folder != "." && !slices.Contains(divided, path.Dir(folder)) {
			folder = path.Dir(folder)
		}
		if !slices.Contains(named, folder) {
			t.Errorf("package %s is not in the layout", name)
		}
	}
}

// TestFilesInDocuments requires each source file that a document names to exist. A document may leave out the first folders.
func TestFilesInDocuments(t *testing.T) {
	files, _ := tree(t)
	for _, document := range files {
		if path.Ext(document) != ".md" {
			continue
		}
		for _, match := range regexp.MustCompile("`([\\w./-]+\\.(?:go|lua))`").FindAllStringSubmatch(readFile(t, document), -1) {
			if !slices.ContainsFunc(files, func(file string) bool { return strings.HasSuffix("/"+file, "/"+match[1]) }) {
				t.Errorf("%s names %s, which does not exist", document, match[1])
			}
		}
	}
}

// TestSectionsInDocuments follows the links to files of the repository and to sections of documents.
func TestSectionsInDocuments(t *testing.T) {
	files, _ := tree(t)
	for _, document := range files {
		if path.Ext(document) != ".md" {
			continue
		}
		for _, match := range regexp.MustCompile(`\]\(([^):#]*)(?:#([^)]+))?\)`).FindAllStringSubmatch(readFile(t, document), -1) {
			target := document
			if match[1] != "" {
				target = path.Join(path.Dir(document), match[1])
			}
			if _, err := os.Stat(filepath.FromSlash(target)); err != nil {
				t.Errorf("%s: %v", document, err)
			} else if match[2] != "" && !slices.Contains(sections(readFile(t, target)), match[2]) {
				t.Errorf("%s: %s has no section %s", document, target, match[2])
			}
		}
	}
}

// sections returns the anchors of a document's headings, as GitHub makes them.
func sections(text string) (anchors []string) {
	for _, heading := range regexp.MustCompile("(?m)^#+ (.+)$").FindAllStringSubmatch(text, -1) {
		anchor := regexp.MustCompile(`[^\w -]`).ReplaceAllString(strings.ToLower(heading[1]), "")
		anchors = append(anchors, strings.ReplaceAll(anchor, " ", "-"))
	}
	return anchors
}

// TestTestsInDocuments requires each test that a document names to exist.
func TestTestsInDocuments(t *testing.T) {
	files, _ := tree(t)
	var tests []string
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			for _, found := range regexp.MustCompile(`(?m)^func ((?:Test|Fuzz|Example)\w+)\(`).FindAllStringSubmatch(readFile(t, name), -1) {
				tests = append(tests, found[1])
			}
		}
	}
	for _, document := range files {
		if path.Ext(document) != ".md" {
			continue
		}
		for _, named := range regexp.MustCompile("`((?:Test|Fuzz)[A-Z]\\w+)`").FindAllStringSubmatch(readFile(t, document), -1) {
			if !slices.Contains(tests, named[1]) {
				t.Errorf("%s names %s, which does not exist", document, named[1])
			}
		}
	}
}

// TestIndexOfDocuments requires docs/README.md to have each document of its folder, once.
func TestIndexOfDocuments(t *testing.T) {
	index := readFile(t, "docs/README.md")
	files, _ := tree(t)
	for _, document := range files {
		folder, name := path.Split(document)
		if folder != "docs/" || path.Ext(name) != ".md" || name == "README.md" {
			continue
		}
		if n := strings.Count(index, "]("+name+")"); n != 1 {
			t.Errorf("docs/README.md has %s %d times, want once", name, n)
		}
	}
}

var (
	keysOfExamples = regexp.MustCompile(`(?m)^\s*redlock (.*\{\w+\..*)$|middleware\.New\(\w+, "([^"]*)"|\x60redlock ([^\x60]*)\x60`)
	ofRequests     = regexp.MustCompile(`\{((?:path|query|header|cookie|body|json|form|payload)\.[^}]*)\}`)
)

// TestKindsInExamples requires the keys of examples to say of which kind a value is, but for one that an application has made of signs of
// its own.
func TestKindsInExamples(t *testing.T) {
	files, _ := tree(t)
	found := 0
	for _, name := range files {
		example := name == "README.md" || strings.HasPrefix(name, "docs/") || strings.HasPrefix(name, "examples/") || strings.HasPrefix(name, "deploy/") || name == "xcaddy.md" || name == "Caddyfile.example"
		if !example || strings.HasSuffix(name, "_test.go") {
			continue
		}
		for _, key := range keysOfExamples.FindAllStringSubmatch(readFile(t, name), -1) {
			for _, placeholder := range ofRequests.FindAllStringSubmatch(strings.Join(key[1:], " "), -1) {
				for one := range strings.SplitSeq(placeholder[1], "|") {
					if found++; !strings.Contains(one, ":") && !strings.Contains(one, "wp_woocommerce_session") {
						t.Errorf("%s: {%s} of %q has no kind", name, one, key[0])
					}
				}
			}
		}
	}
	if found < 20 {
		t.Errorf("%d placeholders of examples", found)
	}
}
