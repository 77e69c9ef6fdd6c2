package docs_test

import (
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestServersInDocuments requires the table of servers in docs/versions.md to be what CI runs.
func TestServersInDocuments(t *testing.T) {
	ran := make(map[string][]string)
	for _, entry := range regexp.MustCompile(`- \{ server: ([^,]+), version: ([^,]+),`).FindAllStringSubmatch(readFile(t, ".github/workflows/ci.yml"), -1) {
		ran[entry[1]] = append(ran[entry[1]], entry[2])
	}
	_, section, _ := strings.Cut(readFile(t, "docs/versions.md"), "\n## Servers\n")
	rows := regexp.MustCompile(`(?m)^\| (\w+) \| (\d[^|]*) \|`).FindAllStringSubmatch(section, -1)
	for _, row := range rows {
		if documented := strings.Split(row[2], ", "); !slices.Equal(documented, ran[row[1]]) {
			t.Errorf("docs/versions.md says that CI runs %s %q, and .github/workflows/ci.yml runs %q", row[1], documented, ran[row[1]])
		}
	}
	if len(rows) != len(ran) || len(rows) == 0 {
		t.Errorf("%d servers in docs/versions.md, %d in .github/workflows/ci.yml", len(rows), len(ran))
	}
}

// TestFilesOfDependabot requires dependabot to look into each folder that has something to update, and into no other.
func TestFilesOfDependabot(t *testing.T) {
	want := make(map[string][]string)
	files, _ := tree(t)
	for _, name := range files {
		kind := ""
		switch base := path.Base(name); {
		case base == "go.mod":
			kind = "gomod"
		case base == "package.json":
			kind = "npm"
		case base == "Dockerfile":
			kind = "docker"
		case base == "docker-compose.yml":
			kind = "docker-compose"
		case base == "Chart.yaml":
			kind = "helm"
		default:
			continue
		}
		want[kind] = append(want[kind], path.Join("/", path.Dir(name)))
	}
	want["github-actions"] = []string{"/"}
	entries := regexp.MustCompile(`package-ecosystem: (\S+)\n    directories: \[(.*)\]`).FindAllStringSubmatch(readFile(t, ".github/dependabot.yml"), -1)
	for _, entry := range entries {
		slices.Sort(want[entry[1]])
		if folders := strings.Split(entry[2], ", "); !slices.Equal(folders, want[entry[1]]) {
			t.Errorf("dependabot looks for %s in %q, and they are in %q", entry[1], folders, want[entry[1]])
		}
	}
	if len(entries) != len(want) {
		t.Errorf("dependabot knows %d kinds of dependencies, and the repository has %d", len(entries), len(want))
	}
}

// TestPartsOfCI requires GitHub to run all that .ci/run runs by itself.
func TestPartsOfCI(t *testing.T) {
	run := readFile(t, ".ci/run")
	parts := regexp.MustCompile(`(?m)^\t(.*) \| all\) "\$part" ;;$`).FindStringSubmatch(run)
	all := regexp.MustCompile(`(?ms)^all\(\) \{$(.*?)^\}$`).FindStringSubmatch(run)
	jobs := regexp.MustCompile(`(?m)^        part: \[(.*)\]`).FindStringSubmatch(readFile(t, ".github/workflows/ci.yml"))
	if parts == nil || all == nil || jobs == nil || jobs[1] != strings.ReplaceAll(parts[1], " | ", ", ") {
		t.Fatalf("the parts are %q in .ci/run, and %q in .github/workflows/ci.yml", parts, jobs)
	}
	for part := range strings.SplitSeq(jobs[1], ", ") {
		if !slices.Contains(strings.Fields(all[1]), part) {
			t.Errorf("all of .ci/run lacks %s", part)
		}
	}
}
