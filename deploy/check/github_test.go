package check

import (
	"errors"
	"io"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// decode reads a file of .github as strictly as GitHub does: a field that it doesn't know is an error.
func decode(t *testing.T, file string, into any) {
	t.Helper()
	decoder := yaml.NewDecoder(strings.NewReader(read(t, filepath.Join("..", "..", ".github", file))))
	decoder.KnownFields(true)
	if err := decoder.Decode(into); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	if err := decoder.Decode(new(any)); !errors.Is(err, io.EOF) {
		t.Errorf("%s: more than one document, or %v", file, err)
	}
}

// issueForm is https://docs.github.com/en/communities/using-templates-to-encourage-useful-issues-and-pull-requests/syntax-for-issue-forms.
type issueForm struct {
	Name, Description, Title string
	Labels                   []string
	Body                     []struct {
		Type, ID   string
		Attributes struct {
			Label, Description, Placeholder, Value, Render string
			Options                                        []string
		}
		Validations struct{ Required bool }
	}
}

// TestIssueForms requires what GitHub requires of a form: it drops one that is wrong without a word.
func TestIssueForms(t *testing.T) {
	forms, err := filepath.Glob("../../.github/ISSUE_TEMPLATE/*.yml")
	if err != nil {
		t.Fatal(err)
	}
	checked := 0
	for _, file := range forms {
		name := filepath.Base(file)
		if name == "config.yml" {
			continue
		}
		checked++
		var form issueForm
		decode(t, filepath.Join("ISSUE_TEMPLATE", name), &form)
		if form.Name == "" || form.Description == "" || len(form.Body) == 0 {
			t.Errorf("%s has no name, description or body", name)
		}
		ids, labels, asks := []string{}, []string{}, false
		for _, part := range form.Body {
			at := part.Attributes
			switch part.Type {
			case "markdown":
				if at.Value == "" {
					t.Errorf("%s: a text without text", name)
				}
				continue
			case "dropdown":
				if len(at.Options) < 2 {
					t.Errorf("%s: %s has nothing to choose from", name, part.ID)
				}
			case "input", "textarea":
			default:
				t.Errorf("%s: type %q", name, part.Type)
			}
			asks = true
			if !regexp.MustCompile(`^[a-zA-Z][\w-]*$`).MatchString(part.ID) || slices.Contains(ids, part.ID) {
				t.Errorf("%s: the id %q", name, part.ID)
			}
			if at.Label == "" || slices.Contains(labels, at.Label) {
				t.Errorf("%s: the label %q", name, at.Label)
			}
			ids, labels = append(ids, part.ID), append(labels, at.Label)
		}
		if !asks {
			t.Errorf("%s asks nothing", name)
		}
	}
	if checked == 0 {
		t.Error("there are no forms")
	}
	var config struct {
		BlankIssuesEnabled bool `yaml:"blank_issues_enabled"`
		ContactLinks       []struct {
			Name, URL, About string
		} `yaml:"contact_links"`
	}
	decode(t, "ISSUE_TEMPLATE/config.yml", &config)
	for _, link := range config.ContactLinks {
		if link.Name == "" || link.About == "" || !strings.HasPrefix(link.URL, "https://") {
			t.Errorf("config.yml: %+v", link)
		}
	}
}

// TestDependabot reads the fields that are used; a test of the repository's root compares the folders.
func TestDependabot(t *testing.T) {
	var config struct {
		Version int
		Updates []struct {
			PackageEcosystem string `yaml:"package-ecosystem"`
			Directories      []string
			Schedule         struct{ Interval string }
			Groups           map[string]struct{ Patterns []string }
			Ignore           []struct {
				DependencyName string `yaml:"dependency-name"`
			}
		}
	}
	decode(t, "dependabot.yml", &config)
	if config.Version != 2 || len(config.Updates) == 0 {
		t.Errorf("%+v", config)
	}
	for _, update := range config.Updates {
		if !slices.Contains([]string{"daily", "weekly", "monthly"}, update.Schedule.Interval) {
			t.Errorf("%s: the interval %q", update.PackageEcosystem, update.Schedule.Interval)
		}
	}
}

// TestReleaseDockerfile: the image of a release differs from the one that is built from source only in where its files come from.
func TestReleaseDockerfile(t *testing.T) {
	released, built := lastStage(t, "release.Dockerfile"), lastStage(t, "Dockerfile")
	if !slices.Equal(released, built) {
		t.Errorf("the last stages differ:\n%s\n\n%s", strings.Join(released, "\n"), strings.Join(built, "\n"))
	}
	goreleaser := read(t, "../../.goreleaser.yaml")
	if !strings.Contains(goreleaser, "dockerfile: deploy/release.Dockerfile\n") {
		t.Error("goreleaser makes no image with it")
	}
	for _, binary := range []string{"caddy", "redlock"} {
		if !strings.Contains(goreleaser, "binary: "+binary+"\n") || find(t, "release.Dockerfile", `^COPY \$TARGETPLATFORM/(`+binary+`) /usr/bin/`+binary+`$`) == "" {
			t.Errorf("a release has no %s", binary)
		}
	}
}

// lastStage returns the instructions of a Dockerfile's last stage without those that copy.
func lastStage(t *testing.T, file string) []string {
	t.Helper()
	text := read(t, filepath.Join("..", file))
	lines := strings.Split(strings.TrimSpace(text[strings.LastIndex(text, "\nFROM ")+1:]), "\n")
	return slices.DeleteFunc(lines, func(line string) bool {
		return strings.HasPrefix(line, "COPY ") || strings.HasPrefix(line, "ARG ") || strings.HasPrefix(line, "#")
	})
}

// TestAboutTheImage requires what Artifact Hub asks of an image of several architectures, on its index, and the files that it names to exist.
func TestAboutTheImage(t *testing.T) {
	var config struct {
		Images []struct {
			Labels, Annotations map[string]string
		} `yaml:"dockers_v2"`
	}
	if err := yaml.Unmarshal([]byte(read(t, "../../.goreleaser.yaml")), &config); err != nil || len(config.Images) == 0 {
		t.Fatalf("%d images: %v", len(config.Images), err)
	}
	for _, image := range config.Images {
		if !maps.Equal(image.Labels, image.Annotations) {
			t.Errorf("labels and annotations differ: %v, %v", image.Labels, image.Annotations)
		}
		for _, name := range []string{"description", "licenses", "source", "title", "version"} {
			if image.Annotations["org.opencontainers.image."+name] == "" {
				t.Errorf("no %s", name)
			}
		}
		if created := image.Annotations["org.opencontainers.image.created"]; created != "{{ .CommitDate }}" { // as RFC 3339
			t.Errorf("created: %q", created)
		}
		for _, name := range []string{"readme", "logo"} {
			address := image.Annotations["io.artifacthub.package."+name+"-url"]
			file, found := strings.CutPrefix(address, "https://raw.githubusercontent.com/caddy-redlock/caddy-redlock/{{ .FullCommit }}/")
			if !found {
				t.Errorf("the %s is at %q", name, address)
				continue
			}
			read(t, filepath.Join("../..", file))
		}
	}
}
