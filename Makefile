STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2
ACTIONLINT := github.com/rhysd/actionlint/cmd/actionlint@v1.7.12
GOVULNCHECK := golang.org/x/vuln/cmd/govulncheck@v1.9.0
GORELEASER := github.com/goreleaser/goreleaser/v2@v2.16.0
SYFT := github.com/anchore/syft/cmd/syft@v1.54.1

MODULE := github.com/caddy-redlock/caddy-redlock

# These keep apt-get from starting the service of redis-server: the tests start their own servers.
NO_SERVICE := RUNLEVEL=1 SYSTEMD_OFFLINE=1
SUDO := $(if $(filter 0,$(shell id -u)),,sudo)
APT := $(SUDO) env DEBIAN_FRONTEND=noninteractive $(NO_SERVICE) flock /tmp/caddy-redlock.apt apt-get

.DEFAULT_GOAL := help
.PHONY: help build test test-all test-race models stacks test-stalled deploy alerts console test-servers clients clients-chaos former former-is-here torture operating storm reloads fuzz soak lint lint-modules bench bench-check bench-http wrk postgres redis-server upstreams corpus suites sdks node prose site images workflows vulncheck release-check release-module release-notes snapshot release syft traefik trial cover

# Tests of many cases, of which they try few with -short or the race detector (redistest.Few).
MODELS := ^(TestSimulation|TestMutants|TestManyLeases|TestManyLost|TestGuardsKeepExclusion|TestScriptsDoWhatTheModelDoes)$$
FUZZTIME ?= 60s
TORTURE_TIME ?= 30m
STORM_TIME ?= 30m
RELOADS ?= 200
CHAOS_TIME ?= 90s
SUITES ?= bin/checkouts
# those that are installed; or the names or paths of others
SERVERS ?= $(foreach name,redis-server valkey-server keydb-server,$(shell command -v $(name)))
# The clone may belong to another user, which git refuses otherwise.
GIT := git -c safe.directory='*'
# the release before this commit or, before there is one, the revision from which on versions understand each other
FORMER ?= $(or $(shell $(GIT) describe --tags --abbrev=0 --match 'v[0-9]*' HEAD~1 2>/dev/null),$(shell cat .ci/former))

help: ## Show the targets
	@sed -n 's/^\([a-z-]*\):[^#]*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 16

build: ## Build bin/caddy: Caddy with the standard modules and this one
	go build -o bin/caddy ./cmd/caddy

# The module of test/ needs what users of the others don't. A workspace of both has them tested by one command.
BOTH := GOWORK=$(CURDIR)/test/go.work
# Most tests wait most of the time.
TEST := $(BOTH) go test -p 4 -parallel 10 -timeout 30m
# With the race detector they keep the processors busy: more of them at a time only make each other late.
RACE := go test -race -p 3 -parallel 6
# The packages that take longest begin first.
ALL := ./test/e2e ./redlock ./clients ./cmd/redlock ./... ./test/...

test: redis-server ## Run the tests of each package, models in few random cases (7 minutes on 2 cores)
	@echo '1/2 compile: minutes the first time, seconds after that'
	$(BOTH) go build ./... ./test/...
	@echo '2/2 test: a line for each package; e2e and redlock take minutes, and are told first'
	$(TEST) -short $(ALL)

test-all: test-race models stacks ## Run all tests with the race detector, models and mutants at full size, and the modules of examples (25 minutes on 2 cores)

test-race: redis-server ## Run all tests with the race detector: e2e and redlock take minutes, and are told first
	$(BOTH) $(RACE) -timeout 30m $(ALL)

models: ## Run models and mutants at full size
	go test -timeout 30m -run '$(MODELS)' ./redlock
	STATES=20000 go test -timeout 30m ./redlock/internal/heartbeat

stacks: redis-server postgres ## Test the modules of examples
	cd examples/stacks && POSTGRES=required go test -race -timeout 5m ./...

test-stalled: redis-server ## Run the tests with the race detector while each processor stands still half of the time, as beside busy neighbors (as root)
	cd test && go build -o ../bin/stall ./stall
	$(BOTH) bin/stall 300ms $(RACE) -timeout 60m -count 1 $(ALL)

deploy: redis-server ## Check the files in deploy: units of systemd, manifests, the compose file, the Dockerfile's build command
	@if ! command -v systemd-analyze >/dev/null; then $(APT) update && $(APT) install -y --no-install-recommends systemd; fi
	cd deploy/check && DEPLOY=required go test -count 1 -timeout 20m ./...

# Not every release of Debian and Ubuntu has Laravel, whose test says if it doesn't run.
clients: redis-server node ## Install the languages of clients/, Laravel and checkers of types (apt-get, npm), and test each client with an agent, and that of PHP in php-fpm and in Laravel
	@if ! { command -v php && ls /usr/sbin/php-fpm* && command -v node && command -v ruby && command -v python3 && command -v curl && command -v mypy && command -v composer && php -m | grep -qx pdo_sqlite; } >/dev/null 2>&1; then \
		$(APT) update && $(APT) install -y --no-install-recommends php-cli php-fpm php-sqlite3 nodejs ruby python3 python3-pip python3-setuptools python3-wheel curl mypy composer; \
	fi
	@for package in php-laravel-framework php-symfony-lock; do \
		if ! dpkg -s $$package >/dev/null 2>&1 && apt-cache show $$package >/dev/null 2>&1; then $(APT) install -y --no-install-recommends $$package; fi; \
	done
	MYPYPATH=clients/python mypy --strict --python-version 3.9 --cache-dir /dev/null clients/python/redlock.py clients/types/usage.py
	$(call npm-install,clients/types)
	bin/types/node_modules/.bin/tsc --noEmit --strict --target es2022 --module nodenext --lib es2023,esnext.disposable --typeRoots bin/types/node_modules/@types --types node clients/types/usage.mts
	CLIENTS=required go test -count 1 -parallel 6 -timeout 10m ./clients
	cd test && CLIENTS=required go test -count 1 -timeout 10m -v -run '^(TestLockInPHP|TestLaravel)$$' ./e2e

clients-chaos: redis-server ## Let clients in all languages that are installed want one key for CHAOS_TIME (90s), and fork, while they, their agent and its masters are killed, stopped and replaced; and find clients that are wrong
	CHAOS_TIME=$(CHAOS_TIME) go test -count 1 -timeout 0 -v -run '^Test(ClientChaos|ChaosFindsMutants)$$' ./clients

test-servers: redis-server ## Run the tests of the lock on each of SERVERS (all that are on the PATH)
	@failed=; for server in $(SERVERS); do \
		$$server --version; \
		REDIS_SERVER=$$server go test -race -count=1 -parallel 6 -timeout 30m -skip 'Simulation|Mutants' ./redlock/... ./internal/redistest || failed="$$failed $$server"; \
	done; test -z "$$failed" || { echo "failed with:$$failed" >&2; exit 1; }

former: redis-server former-is-here ## Run processes of the release before this (or of FORMER, a revision) beside those of the present code
	@echo 'beside $(FORMER):'; sources=$$(mktemp -d); trap 'rm -r "$$sources"' EXIT; \
	$(GIT) archive '$(FORMER)' | tar -x -C "$$sources" && \
	cd test && FORMER_SOURCES="$$sources" go test -count 1 -timeout 20m ./compat

former-is-here:
	@$(GIT) cat-file -e '$(FORMER)^{commit}' 2>/dev/null || { \
		echo 'the former version, $(FORMER), is not in this clone: run git fetch --unshallow --tags' >&2; exit 1; }

torture: redis-server ## Let processes lock for TORTURE_TIME (30m) while everything goes wrong: docs/testing.md
	cd test && TORTURE_TIME=$(TORTURE_TIME) go test -count=1 -timeout 0 -v -run '^TestTorture$$' ./torture

# The tests that call needTime, and those that are longer here.
OPERATING := ^Test(Reloads|Rotations?|Incidents|InsecureTLS|AdminCommands|LongAndHostileKeys|Watch|AdminAddresses|Exit.*|Deploy|DeployedCaddyfiles|CommandsOfRedis|RememberedPayments)$$

operating: redis-server ## Run the longer tests of operating Caddys: reloads, exits, commands, rotation, incidents, deploy/ (5 minutes)
	cd test && OPERATING=1 go test -race -count=1 -parallel 6 -timeout 20m -run '$(OPERATING)' ./e2e

storm: redis-server ## Repeat payments through Caddys and a net/http server that fail, as do their masters, for STORM_TIME (30m)
	cd test && STORM_TIME=$(STORM_TIME) go test -count=1 -timeout 0 -v -run '^TestRememberedPayments$$' ./e2e

reloads: redis-server ## Reload two Caddys RELOADS times (200) under load, in turn with right and wrong configurations (5 minutes)
	cd test && RELOADS=$(RELOADS) go test -count=1 -timeout 0 -v -run '^TestReloads$$' ./e2e

# Go 1.26 may report the end of FUZZTIME as a failure (go.dev/issue/75804): only a failure with a failing input is real.
fuzz: ## Fuzz the readers of requests, templates and what masters say, FUZZTIME (60s) each
	@log=$$(mktemp); \
	for target in $$(grep -o '^func Fuzz[A-Za-z]*' middleware/*_test.go middleware/internal/*/*_test.go redlock/internal/*/*_test.go | sed 's|/[^/]*:func |:|'); do \
		go test -run '^$$' -fuzz "^$${target#*:}$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 1s ./$${target%:*} >$$log 2>&1; status=$$?; \
		echo "$$target: $$(grep execs $$log | tail -n 1)"; \
		if [ $$status != 0 ] && { grep -q 'Failing input' $$log || ! grep -qx ' *context deadline exceeded' $$log; }; then \
			cat $$log; exit 1; \
		fi; \
	done; rm $$log

alerts: redis-server ## Install Prometheus if it is missing, and let each alert of deploy/prometheus fire once (1 minute)
	@if ! { command -v prometheus && command -v promtool; } >/dev/null; then \
		$(APT) update && $(APT) install -y --no-install-recommends prometheus; \
	fi
	cd test && ALERTS=required go test -race -count 1 -timeout 5m -run '^TestAlert' ./e2e

# Debian's packages for the upstreams, and for the proxies in front of them (UPSTREAMS=express+nginx). php-fpm is for php_fastcgi; Rack and Python need the servers of webrick and Flask.
UPSTREAMS ?= all
PACKAGES_flask := python3-flask
PACKAGES_gunicorn := python3-flask python3-gunicorn
PACKAGES_uwsgi := python3-flask uwsgi-core uwsgi-plugin-python3
PACKAGES_waitress := python3-flask python3-waitress
PACKAGES_django := python3-django python3-flask
PACKAGES_bottle := python3-bottle python3-flask
PACKAGES_tornado := python3-tornado
PACKAGES_aiohttp := python3-aiohttp
PACKAGES_falcon := python3-falcon python3-flask
PACKAGES_starlette := python3-starlette python3-multipart uvicorn
PACKAGES_fastapi := python3-fastapi python3-multipart uvicorn
PACKAGES_quart := python3-quart
PACKAGES_cherrypy := python3-cherrypy3
PACKAGES_webob := python3-webob python3-waitress
PACKAGES_pyramid := python3-pyramid python3-waitress
PACKAGES_twisted := python3-twisted
PACKAGES_rack := ruby-rack ruby-webrick
PACKAGES_puma := ruby-rack puma
PACKAGES_sinatra := ruby-sinatra ruby-rack ruby-webrick
PACKAGES_grape := ruby-grape ruby-rack ruby-webrick
PACKAGES_rails := ruby-railties ruby-actionpack ruby-rack puma
PACKAGES_mojolicious := libplack-perl libmojolicious-perl
PACKAGES_dancer2 := libplack-perl libdancer2-perl
PACKAGES_catalyst := libplack-perl libcatalyst-perl
PACKAGES_plack := libplack-perl
PACKAGES_cgi := libplack-perl libcgi-pm-perl
PACKAGES_php := php-cli php-fpm
PACKAGES_symfony := php-cli php-symfony-http-foundation php-symfony-routing
PACKAGES_slim := php-cli php-slim
PACKAGES_tomcat := default-jdk-headless libtomcat10-embed-java libjackson2-databind-java
PACKAGES_jetty := default-jdk-headless libjetty9-java libspring-web-java
PACKAGES_spring := $(PACKAGES_jetty)
PACKAGES_nginx := nginx-light
PACKAGES_apache := apache2-bin
PACKAGES_haproxy := haproxy
UPSTREAM_NAMES := $(if $(filter all,$(UPSTREAMS)),$(patsubst PACKAGES_%,%,$(filter PACKAGES_%,$(.VARIABLES))),$(subst +, ,$(UPSTREAMS)))
UPSTREAM_PACKAGES := $(sort $(foreach name,$(UPSTREAM_NAMES),$(PACKAGES_$(name))))

# npm-install installs the packages of $(1)/package.json in bin, once. Some bring Go: ./... doesn't go into another module.
define npm-install
	@mkdir -p bin && echo 'module bin' >bin/go.mod
	@cmp -s $(1)/package.json bin/$(notdir $(1))/installed || { \
		npm install --silent --fetch-retries 2 --fetch-retry-mintimeout 1000 --fetch-retry-maxtimeout 5000 --fetch-timeout 60000 --ignore-scripts --no-audit --no-fund --no-package-lock --prefix bin/$(notdir $(1)) $$(sed -n 's/^ *"\(.*\)": "\([^ "]*[0-9.]*\)",*$$/\1@\2/p' $(1)/package.json) && \
		cp $(1)/package.json bin/$(notdir $(1))/installed || { \
		echo 'npm could not install the packages of $(1)/package.json: can its registry be reached?' >&2; exit 1; }; }
endef

upstreams: node ## Install UPSTREAMS (all; apt-get, npm) and compare our keys with what they read
	@if ! dpkg -s $(UPSTREAM_PACKAGES) >/dev/null 2>&1; then \
		$(APT) update && $(APT) install -y --no-install-recommends $(UPSTREAM_PACKAGES); \
	fi
	$(call npm-install,test/upstreams)
	$(if $(filter all nethttp chi gorilla gin echo fiber,$(UPSTREAMS)),cd examples/stacks && go build -o ../../bin/upstreams/go ./upstream)
	cd test && UPSTREAMS='$(UPSTREAMS)' go test -count 1 -timeout 90m -run 'TestNoSplit|TestUpstream' ./e2e

corpus: node ## Let clients in 12 languages send 12,000 requests, and store a sample of them in test/corpus (apt-get, npm, Chromium; 5 minutes)
	$(APT) update && $(APT) install -y --no-install-recommends chromium curl default-jdk-headless erlang-inets httpie jq libmojolicious-perl liburi-perl libwww-perl lua-cjson lua-socket lua5.4 php-cli php-curl php-guzzlehttp-guzzle python3-aiohttp python3-httplib2 python3-httpx python3-pycurl python3-requests r-cran-curl r-cran-jsonlite ruby-excon ruby-faraday ruby-httparty ruby-httpclient ruby-rack ruby-rest-client ruby-typhoeus tcllib wget
	$(call npm-install,test/corpus)
	cd test/corpus && go run ./record

suites: ## Store documents of others' test suites from the checkouts in SUITES, a folder, for the tests (fetches nothing)
	$(BOTH) go run ./test/suites '$(SUITES)'

sdks: node redis-server ## Install the senders' SDKs (npm, apt-get), compare our verdicts on signatures with theirs, and let those of Stripe repeat payments
	@/usr/bin/python3 -c 'import stripe' 2>/dev/null || { $(APT) update && $(APT) install -y --no-install-recommends python3-stripe; }
	$(call npm-install,test/sdks)
	$(BOTH) SDKS=required go test -count 1 -run 'TestSDK|TestPresetOf' ./test/sdks ./test/e2e

traefik: redis-server ## Build a real Traefik, and run it with the plugin and an agent beside a Caddy (10 minutes the first time): docs/traefik.md
	@mkdir -p bin
	@test -x bin/traefik || examples/traefik/build.sh bin/traefik
	TRAEFIK=$(abspath bin/traefik) examples/traefik/try.sh

# 35 s and 230 MB for Debian, once; then 1 minute, with a warm cache of Go.
trial: redis-server ## Do what README says to type first in a bare Debian, which it makes (debootstrap, as root): Caddy, Go, redlock run, agent
	@if ! { command -v debootstrap && command -v ip; } >/dev/null; then \
		$(APT) update && $(APT) install -y --no-install-recommends debootstrap debian-archive-keyring iproute2; \
	fi
	TRIAL='$(TRIAL)' test/trial/run.sh

COVERED := ./redlock/... ./middleware/... ./metrics ./console ./agent

cover: redis-server ## Say how much of the packages that programs import their tests run, and write bin/coverage.out (5 minutes)
	@mkdir -p bin
	$(TEST) -short -coverpkg "$$(echo $(COVERED) | tr " " ,)" -coverprofile bin/coverage.out $(COVERED)
	@go tool cover -func bin/coverage.out | tail -n 1

node:
	@if ! command -v npm >/dev/null; then $(APT) update && $(APT) install -y --no-install-recommends nodejs npm; fi

soak: ## Run the simulation of the protocol over 100,000 worlds (hours)
	SEEDS=100000 go test -timeout 0 -run TestSimulation ./redlock

console: redis-server ## Look at the page of the console with Chromium, which it installs
	@if ! command -v chromium >/dev/null; then $(APT) update && $(APT) install -y --no-install-recommends chromium fonts-dejavu-core; fi
	cd console/browsertest && go test -count 1 -parallel 4 -timeout 10m ./...

images: build redis-server ## Record the terminal in README, draw the results of make bench, and photograph the console with Chromium, which make console installs
	go run ./tools/recording
	go run ./tools/curves
	cd console/browsertest && PICTURE=$(abspath docs/images/console.png) go test -count 1 -run '^TestPicture$$' .

lint: build ## Check format, vet, staticcheck, go.mod and Caddyfile.example (lint-modules has the modules beside this one)
	@test -z "$$(gofmt -s -l . | tee /dev/stderr)" || { echo 'run gofmt -s -w on these files' >&2; exit 1; }
	go vet ./...
	go run $(STATICCHECK) ./...
	go mod tidy -diff
	bin/caddy validate --config Caddyfile.example
	bin/caddy fmt Caddyfile.example >/dev/null # fails, with the line, where the format differs

# What they share with the module above has its versions, so that it is compiled and analyzed once.
lint-modules: ## Check vet, staticcheck and go.mod of the modules beside this one
	for module in test examples/stacks deploy/check console/browsertest; do ( \
		cd $$module && go vet ./... && go run $(STATICCHECK) ./... && go mod tidy -diff) || exit 1; \
	done

prose: node ## Check the spelling in documents, comments and messages: tools/prose/words.txt has the words that are right
	$(call npm-install,tools/prose)
	bin/prose/node_modules/.bin/cspell lint --no-progress --show-suggestions --config tools/prose/cspell.json || { \
		echo 'correct these words, or add those that are right to tools/prose/words.txt' >&2; exit 1; }

site: node ## Build the site from docs in bin/site/dist, with a part for each minor version, and follow its links (20 seconds)
	$(call npm-install,tools/site)
	tools/site/build.sh

workflows: ## Check the workflows of GitHub and the scripts of the shell
	@if ! command -v shellcheck >/dev/null; then $(APT) update && $(APT) install -y --no-install-recommends shellcheck; fi
	go run $(ACTIONLINT)
	shellcheck .ci/run tools/site/*.sh test/trial/run.sh examples/jobs/*.sh examples/traefik/*.sh clients/shell/*.sh

# The tool exits with 3 for what it has found, and with 1 if it can't get the database.
vulncheck: ## Look for known vulnerabilities in what is called; that the database can't be reached is an error with VULNDB=required
	@log=$$(mktemp); trap 'rm -f "$$log"' EXIT; \
	go run $(GOVULNCHECK) -scan module >"$$log" 2>&1 || true; \
	if grep -q 'fetching vulnerabilities' "$$log"; then \
		grep 'fetching vulnerabilities' "$$log" >&2; \
		echo 'NOT CHECKED for known vulnerabilities: the database at vuln.go.dev can not be reached from here' >&2; \
		test '$(VULNDB)' != required; exit; \
	fi; \
	go run $(GOVULNCHECK) ./...

# Without VERSION it is this checkout, whose version Go calls (devel).
release-module: ## Make bin/release, the module that a release is built from, as xcaddy makes one: with VERSION of this one
	rm -rf bin/release && mkdir -p bin/release
	sed 's/^module .*/module caddy/' go.mod >bin/release/go.mod
	cp go.sum cmd/caddy/main.go bin/release/
	cd bin/release && if [ -n '$(VERSION)' ]; then go get $(MODULE)@$(VERSION); \
		else go mod edit -require=$(MODULE)@v0.0.0 -replace=$(MODULE)=../..; fi

release-check: ## Check .goreleaser.yaml, and build Caddy and redlock for this platform as a release does (heavy: goreleaser is built first)
	go run $(GORELEASER) check
	go run $(GORELEASER) build --snapshot --clean --single-target
	bin/dist/caddy_*/caddy list-modules --versions --skip-standard
	bin/dist/redlock_*/redlock --version

release-notes: ## Print the section of VERSION in CHANGELOG.md, which must have its date
	@awk -v title='## [$(VERSION:v%=%)] - 2' 'index($$0, title) == 1 { found = inside = 1; next } /^## \[|^\[[0-9.]+\]: / { inside = 0 } inside; END { exit !found }' CHANGELOG.md || { \
		echo 'CHANGELOG.md has no section "## [$(VERSION:v%=%)] - <date>"' >&2; exit 1; }

SKIP ?= publish,docker,sbom

snapshot: ## Make in bin/dist what a release would have, without SKIP (publish,docker,sbom)
	go run $(GORELEASER) release --snapshot --clean --skip=$(SKIP)

release: ## Release the tag of this commit as a draft, with GITHUB_TOKEN; only the workflow does this
	@mkdir -p bin
	$(MAKE) --no-print-directory release-notes VERSION=$$(git describe --exact-match --tags) >bin/release-notes.md
	go run $(GORELEASER) release --clean --release-notes bin/release-notes.md

syft: ## Install syft, which writes the lists of parts (SBOM)
	go install $(SYFT)

bench: redis-server ## Compare the library with its peers (14 minutes): test/bench/RESULTS.md
	cd test/bench && go run .
	go run ./tools/curves

bench-check: redis-server wrk ## Run each benchmark once
	cd test/bench && out=$$(mktemp -d) && go run . -quick -o $$out && go run . -http -quick -o $$out && rm -r $$out

bench-http: redis-server wrk ## Measure Caddy with and without locks, with wrk, which it installs (3 minutes): test/bench/RESULTS.md
	cd test/bench && go run . -http

postgres:
	@if ! ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1; then $(APT) update && $(APT) install -y --no-install-recommends postgresql; fi

wrk:
	@if ! command -v wrk >/dev/null; then $(APT) update && $(APT) install -y --no-install-recommends wrk; fi

redis-server:
	@if [ -n "$$REDIS_SERVER" ] || command -v redis-server >/dev/null || command -v valkey-server >/dev/null; then exit; fi; \
	if ! command -v apt-get >/dev/null; then \
		echo 'neither redis-server nor valkey-server is on the PATH' >&2; exit 1; \
	fi; \
	echo 'redis-server is missing: installing it with $(if $(SUDO),sudo )apt-get'; \
	$(APT) update && $(APT) install -y --no-install-recommends redis-server
