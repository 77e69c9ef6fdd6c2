package clients

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestPackages installs the package that each folder is, without a network, and loads it from where it was installed.
func TestPackages(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ needs, install, load string }{
		"python": {"/usr/bin/python3 -c 'import setuptools, wheel, pip'", "/usr/bin/python3 -m pip install --quiet --no-index --no-build-isolation --no-deps --target ../installed .",
			"PYTHONPATH=installed /usr/bin/python3 -c 'import redlock_agent; redlock_agent.AsyncAgent()' && test -e installed/redlock_agent/py.typed"},
		"python, from its sdist": {"/usr/bin/python3 -c 'import setuptools, wheel, pip'",
			"/usr/bin/python3 -c 'from setuptools import build_meta; build_meta.build_sdist(\"../built\")' && " +
				"/usr/bin/python3 -m pip install --quiet --no-index --no-build-isolation --no-deps --target ../installed ../built/*.tar.gz",
			"PYTHONPATH=installed /usr/bin/python3 -c 'import redlock_agent; redlock_agent.AsyncAgent()' && test -e installed/redlock_agent/py.typed"},
		"node": {"npm --version", "npm pack --silent && mkdir ../installed && npm install --silent --offline --no-audit --no-fund --prefix ../installed ./*.tgz",
			"cd installed && test -e node_modules/redlock-agent/redlock_agent.d.mts && node --input-type module -e 'import { Agent } from \"redlock-agent\"; new Agent()'"},
		"ruby": {"gem --version", "gem build --silent redlock-agent.gemspec && gem install --silent --local --no-document --install-dir ../installed ./*.gem",
			"GEM_PATH=installed ruby -e 'gem \"redlock-agent\"; require \"redlock_agent\"; RedlockAgent.new'"},
		"php": {"php --version", "cp -r . ../installed",
			`cd installed && php -r '$c = json_decode(file_get_contents("composer.json"), true, flags: JSON_THROW_ON_ERROR); foreach ($c["autoload"]["files"] as $f) { require $f; } ` +
				`spl_autoload_register(fn ($name) => require $c["autoload"]["psr-4"]["Redlock\\"] . substr($name, 8) . ".php"); interface_exists("Redlock\\Agent"); new Redlock\Agent();'`},
		"php, with composer": {"composer --version",
			`mkdir ../installed && cd ../installed && echo '{"repositories": [{"packagist.org": false}, {"type": "path", "url": "../package", "options": {"symlink": false}}],
				"require": {"caddy-redlock/agent": "*@dev"}}' >composer.json && composer validate --quiet ../package/composer.json && composer install --quiet --no-interaction`,
			`cd installed && php -r '$loader = require "vendor/autoload.php"; new Redlock\Agent(); $loader->findFile("Redlock\LaravelLock") || exit(1);'`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if out, err := exec.Command("sh", "-c", c.needs).CombinedOutput(); err != nil {
				t.Skipf("%v: %s", err, out)
			}
			dir := t.TempDir()
			language, _, _ := strings.Cut(name, ",")
			if err := os.CopyFS(filepath.Join(dir, "package"), os.DirFS(language)); err != nil {
				t.Fatal(err)
			}
			run(t, filepath.Join(dir, "package"), c.install)
			run(t, dir, c.load)
		})
	}
}

func run(t *testing.T, dir, command string) {
	t.Helper()
	cmd := exec.Command("sh", "-euc", command)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "HOME="+dir, "PYTHONDONTWRITEBYTECODE=1", "COMPOSER_ALLOW_SUPERUSER=1")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v: %s", command, err, strings.TrimSpace(string(out)))
	}
}
