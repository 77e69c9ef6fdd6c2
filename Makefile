STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2
ACTIONLINT := github.com/rhysd/actionlint/cmd/actionlint@v1.7.12
GOVULNCHECK := golang.org/x/vuln/cmd/govulncheck@v1.9.0
GORELEASER := github.com/goreleaser/goreleaser/v2@v2.16.0
SYFT := github.com/anchore/syft/cmd/syft@v1.54.1

MODULE := github.com/caddy-redlock/caddy-redlock

.DEFAULT_GOAL := help
.PHONY: $(shell sed -n 's/^\([a-z-]*\):.*/\1/p' $(firstword $(MAKEFILE_LIST)))

# Tests of many cases, of which they try few with -short or the race detector (redistest.Few).
MODELS := ^(TestSimulation|TestMutants|TestManyLeases|TestManyLost|TestManyProcesses|TestLocksEndBeforeTheyAreForgotten|TestGuardsKeepExclusion|TestScriptsDoWhatTheModelDoes)$$
FUZZTIME ?= 60s
TORTURE_TIME ?= 30m
STORM_TIME ?= 30m
RELOADS ?= 200
SUITES ?= bin/checkouts
# those that are installed; or the names or paths of others
SERVERS ?= $(foreach name,redis-server valkey-server keydb-server,$(shell command -v $(name)))
# The clone may belong to another user, which git refuses otherwise.
GIT := git -c safe.directory='*'
# the release before this commit or, before there is one, the revision from which on versions understand each other
FORMER ?= $(or $(shell $(GIT) describe --tags --abbrev=0 --match 'v[0-9]*' HEAD~1 2>/dev/null),$(shell cat .ci/former))

help: ## Show what is typed in a day
	@sed -n 's/^\([a-z-]*\):[^#]*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 16

help-all: ## Show the other targets, too
	@sed -n 's/^\([a-z-]*\):[^#]*##* /\1\t/p' $(MAKEFILE_LIST) | expand -t 16

build: ## Build bin/caddy: Caddy with the standard modules and this one
	go build -o bin/caddy ./cmd/caddy

# The module of test/ needs what users of the others don't. A workspace of both has them tested by one command.
BOTH := GOWORK=$(CURDIR)/test/go.work
# Most tests wait most of the time.
TEST := go test -p 4 -parallel 10 -timeout 30m
# With the race detector, which needs cgo, they keep the processors busy: more of them at a time only make each other late.
RACE := CGO_ENABLED=1 go test -race -p 3 -parallel 6 -timeout 30m
# No process waits for a second before it ends, and what the detector knows of the memory is in large pages, which saves a fifth of a start of Caddy.
export GORACE := atexit_sleep_ms=0 no_huge_pages_for_shadow=0

# What runs real processes is make test-programs', but for the Caddys that test/e2e runs with -short. The packages that take longest begin first.
PACKAGES = ./redlock $$(go list ./... | grep -vE '/(clients|cmd|examples)(/|$$)')
PROGRAMS := ./test/e2e ./clients ./cmd/redlock ./examples/... ./test/...
# Where no goroutine is started, there is nothing for the race detector to find.
CONCURRENT = $$(go list $(PACKAGES) | grep -vE '/(docs|tools/\w+|internal/(programs/cli|programs/rule|base/version|fold|remember|admission|heartbeat))$$')

test: redis-server ## Run the tests of the packages and of one Caddy, and models in few random cases (2 minutes on 2 cores)
	@echo '1/2 compile: minutes the first time, seconds after that'
	@$(BOTH) go list -export ./test/e2e $(PACKAGES) >/dev/null # go build would link each program
	@echo '2/2 test: a line for each package'
	$(BOTH) $(TEST) -short ./test/e2e $(PACKAGES)

test-race: redis-server ## Run the tests of the packages that start goroutines with the race detector
	$(RACE) -skip '^TestYaegiRunsIt$$' $(CONCURRENT)

test-programs: redis-server languages types prometheus deploy console ## Run real processes: Caddys, redlock run, agents and their clients, Traefik's plugin, deploy/, Chromium
	$(BOTH) CLIENTS=required ALERTS=required TORTURE_TIME=1m $(RACE) $(PROGRAMS)

interpreted: redis-server ### Run the plugin for Traefik in the interpreter that Traefik has, which the race detector can't look at, also beside a Caddy
	cd test && go test -timeout 20m -run '^(TestInterpreted|TestSlots)$$' ./traefik

compile-race: ### Compile what test-race and test-programs have in common
	@$(BOTH) CGO_ENABLED=1 go list -race -export ./... ./test/... >/dev/null

test-all: test test-race models stacks test-programs interpreted ## Run all of these

models: ## Run models and mutants at full size
	go test -timeout 30m -run '$(MODELS)' ./redlock
	@# The ways to its states live to the end: collected half as often, it takes 400 MB, and an eighth less time.
	STATES=20000 GOGC=200 go test -timeout 30m ./redlock/internal/heartbeat

mutants: redis-server ### Let tests find the wrong versions of the code in test/mutants, or those whose names match MUTANTS (10 minutes)
	$(BOTH) go run ./test/mutants '$(MUTANTS)'

stacks: redis-server postgres ### Test the modules of examples
	cd examples/stacks && POSTGRES=required CGO_ENABLED=1 go test -race -timeout 5m ./...

test-stalled: redis-server ### Run the tests with the race detector while each processor stands still half of the time, as beside busy neighbors (as root)
	cd test && go build -o ../bin/stall ./stall
	$(BOTH) bin/stall 300ms env $(RACE) -timeout 60m -count 1 $(PROGRAMS) $(PACKAGES)

deploy: redis-server ### Check the files in deploy: units of systemd, manifests, the compose file, the Dockerfile's build command
	@command -v systemd-analyze >/dev/null || tools/debian.sh systemd
	cd deploy/check && DEPLOY=required go test -count 1 -timeout 20m ./...

languages: node
	@{ command -v php && ls /usr/sbin/php-fpm* && command -v ruby && test -x /usr/bin/python3 && command -v curl && command -v composer && php -m | grep -qx pdo_sqlite; } >/dev/null 2>&1 || \
		tools/debian.sh php-cli php-fpm php-sqlite3 ruby python3 python3-pip python3-setuptools python3-wheel curl composer
	@# Not every release of Debian and Ubuntu has these, whose tests say if they don't run.
	@for package in php-laravel-framework php-symfony-lock; do ! apt-cache show $$package >/dev/null 2>&1 || tools/debian.sh $$package; done

types: node ### Check the types of the clients for Python and Node
	@command -v mypy >/dev/null || tools/debian.sh mypy
	MYPYPATH=clients/python mypy --strict --python-version 3.9 --cache-dir /dev/null clients/python/redlock_agent.py clients/types/usage.py
	tools/npm.sh clients/types
	bin/types/node_modules/.bin/tsc --noEmit --strict --target es2022 --module nodenext --lib es2023,esnext.disposable --typeRoots bin/types/node_modules/@types --types node clients/types/usage.mts

prometheus:
	@command -v prometheus >/dev/null && command -v promtool >/dev/null || tools/debian.sh prometheus

clients: redis-server languages types ### Test each client with an agent, and that of PHP in php-fpm and in Laravel
	CLIENTS=required go test -count 1 -parallel 6 -timeout 10m ./clients
	cd test && CLIENTS=required go test -count 1 -timeout 10m -v -run '^(TestLockInPHP|TestLaravel)$$' ./e2e

test-servers: redis-server ### Run the tests of the lock on each of SERVERS (all that are on the PATH)
	@failed=; for server in $(SERVERS); do \
		$$server --version; \
		REDIS_SERVER=$$server go test -race -count=1 -parallel 6 -timeout 30m -skip 'Simulation|Mutants' ./redlock/... ./internal/tests/redistest || failed="$$failed $$server"; \
	done; test -z "$$failed" || { echo "failed with:$$failed" >&2; exit 1; }

former: redis-server former-is-here ### Run processes of the release before this (or of FORMER, a revision) beside those of the present code
	@echo 'beside $(FORMER):'; sources=$$(mktemp -d); trap 'rm -r "$$sources"' EXIT; \
	$(GIT) archive '$(FORMER)' | tar -x -C "$$sources" && \
	cd test && FORMER_SOURCES="$$sources" go test -count 1 -timeout 20m -skip '^TestAnotherWire$$' ./compat # which has no former version

former-is-here:
	@$(GIT) cat-file -e '$(FORMER)^{commit}' 2>/dev/null || { \
		echo 'the former version, $(FORMER), is not in this clone: run git fetch --unshallow --tags' >&2; exit 1; }

torture: redis-server ## Let processes and clients lock for TORTURE_TIME (30m) while everything goes wrong: docs/testing.md
	cd test && TORTURE_TIME=$(TORTURE_TIME) go test -count=1 -timeout 0 -v ./torture

storm: redis-server ### Repeat payments through Caddys and a net/http server that fail, as do their masters, for STORM_TIME (30m)
	cd test && STORM_TIME=$(STORM_TIME) go test -count=1 -timeout 0 -v -run '^TestRememberedPayments$$' ./e2e

reloads: redis-server ### Reload two Caddys RELOADS times (200) under load, in turn with right and wrong configurations (5 minutes)
	cd test && RELOADS=$(RELOADS) go test -count=1 -timeout 0 -v -run '^TestReloads$$' ./e2e

fuzz: ## Fuzz the readers of requests, templates and what masters say, FUZZTIME (60s, or 10000x) each
	tools/fuzz.sh $(FUZZTIME)

UPSTREAMS ?= all

upstreams: ### Install UPSTREAMS (all; apt-get, npm) and compare our keys with what they read
	test/upstreams/install.sh '$(UPSTREAMS)'
	cd test && UPSTREAMS='$(UPSTREAMS)' go test -count 1 -timeout 90m -run 'TestNoSplit|TestUpstream' ./e2e

corpus: node ### Let clients in 12 languages send 12,000 requests, and store a sample of them in test/corpus (apt-get, npm, Chromium; 5 minutes)
	tools/debian.sh chromium curl default-jdk-headless erlang-inets httpie jq libmojolicious-perl liburi-perl libwww-perl lua-cjson lua-socket lua5.4 php-cli php-curl php-guzzlehttp-guzzle python3-aiohttp python3-httplib2 python3-httpx python3-pycurl python3-requests r-cran-curl r-cran-jsonlite ruby-excon ruby-faraday ruby-httparty ruby-httpclient ruby-rack ruby-rest-client ruby-typhoeus tcllib wget
	tools/npm.sh test/corpus
	cd test/corpus && go run ./record

suites: ### Store documents of others' test suites from the checkouts in SUITES, a folder, for the tests (fetches nothing)
	$(BOTH) go run ./test/suites '$(SUITES)'

sdks: node redis-server ### Install the senders' SDKs (npm, apt-get), compare our verdicts on signatures with theirs, and let those of Stripe repeat payments
	@/usr/bin/python3 -c 'import stripe' 2>/dev/null || tools/debian.sh python3-stripe
	tools/npm.sh test/sdks
	$(BOTH) SDKS=required go test -count 1 -run 'TestSDK|TestPresetOf' ./test/sdks ./test/e2e

traefik: redis-server ### Build a real Traefik, and run it with the plugin and an agent beside a Caddy (10 minutes the first time): docs/traefik.md
	@mkdir -p bin
	@test -x bin/traefik || examples/traefik/build.sh bin/traefik
	TRAEFIK=$(abspath bin/traefik) examples/traefik/try.sh

# 35 s and 230 MB for Debian, once; then 1 minute, with a warm cache of Go.
trial: redis-server ### Do what README says to type first in a bare Debian, which it makes (debootstrap, as root): Caddy, Go, redlock run, agent
	@{ command -v debootstrap && command -v ip; } >/dev/null || tools/debian.sh debootstrap debian-archive-keyring iproute2
	TRIAL='$(TRIAL)' test/trial/run.sh

COVERED := ./redlock/... ./middleware/... ./metrics ./console ./agent

cover: redis-server ## Say how much of what programs import is tested, and write bin/coverage.out (5 minutes)
	@mkdir -p bin
	$(TEST) -short -coverpkg "$$(echo $(COVERED) | tr " " ,)" -coverprofile bin/coverage.out $(COVERED)
	@go tool cover -func bin/coverage.out | tail -n 1

node:
	@command -v npm >/dev/null || tools/debian.sh nodejs npm

soak: ### Run the simulation of the protocol over 100,000 worlds (hours)
	SEEDS=100000 go test -timeout 0 -run TestSimulation ./redlock

console: redis-server ### Look at the page of the console with Chromium, which it installs
	@command -v chromium >/dev/null || tools/debian.sh chromium fonts-dejavu-core
	cd console/browsertest && go test -count 1 -parallel 4 -timeout 10m ./...

images: build redis-server ### Record the terminal in README, draw the results of make bench, and photograph the console with Chromium, which make console installs
	go run ./tools/recording
	go run ./tools/curves
	cd console/browsertest && PICTURE=$(abspath docs/images/console.png) go test -count 1 -run '^TestPicture$$' .

lint: build ## Check format, vet, staticcheck, go.mod, shell scripts and Caddyfile.example (lint-modules has the modules beside this one)
	@test -z "$$(gofmt -s -l . | tee -a /dev/stderr)" || { echo 'run gofmt -s -w on these files' >&2; exit 1; }
	go vet ./...
	go run $(STATICCHECK) ./...
	go mod tidy -diff
	@command -v shellcheck >/dev/null || tools/debian.sh shellcheck
	shellcheck .ci/run tools/*.sh tools/site/*.sh test/upstreams/*.sh test/trial/run.sh examples/jobs/*.sh examples/traefik/*.sh clients/shell/*.sh
	bin/caddy validate --config Caddyfile.example
	bin/caddy fmt Caddyfile.example >/dev/null # fails, with the line, where the format differs

# What they share with the module above has its versions, so that it is compiled and analyzed once.
lint-modules: ### Check vet, staticcheck and go.mod of the modules beside this one
	for module in test examples/stacks deploy/check console/browsertest; do ( \
		cd $$module && go vet ./... && go run $(STATICCHECK) ./... && go mod tidy -diff) || exit 1; \
	done

prose: node ## Check the spelling in documents, comments and messages: tools/prose/words.txt has the words that are right
	tools/npm.sh tools/prose
	bin/prose/node_modules/.bin/cspell lint --no-progress --show-suggestions --config tools/prose/cspell.json || { \
		echo 'correct these words, or add those that are right to tools/prose/words.txt' >&2; exit 1; }

site: node ## Build the site from docs in bin/site/dist, with a part for each minor version, and follow its links (20 seconds)
	tools/npm.sh tools/site
	tools/site/build.sh

workflows: ### Check the workflows of GitHub
	go run $(ACTIONLINT)

vulncheck: ### Look for known vulnerabilities in what is called; that the database can't be reached is an error with VULNDB=required
	tools/vulncheck.sh $(GOVULNCHECK)

# Without VERSION it is this checkout, which has no version.
release-module: ### Make bin/release, the module that a release is built from, as xcaddy makes one: with VERSION of this one
	rm -rf bin/release && mkdir -p bin/release
	sed 's/^module .*/module caddy/' go.mod >bin/release/go.mod
	cp go.sum cmd/caddy/main.go bin/release/
	cd bin/release && if [ -n '$(VERSION)' ]; then go get $(MODULE)@$(VERSION); \
		else go mod edit -require=$(MODULE)@v0.0.0 -replace=$(MODULE)=../..; fi

release-check: ### Check .goreleaser.yaml, and build Caddy and redlock for this platform as a release does (heavy: goreleaser is built first)
	go run $(GORELEASER) check
	go run $(GORELEASER) build --snapshot --clean --single-target
	bin/dist/caddy_*/caddy list-modules --versions --skip-standard
	bin/dist/redlock_*/redlock --version

release-notes: ### Print the section of VERSION in CHANGELOG.md, which must have its date
	@awk -v title='## [$(VERSION:v%=%)] - 2' 'index($$0, title) == 1 { found = inside = 1; next } /^## \[|^\[[0-9.]+\]: / { inside = 0 } inside; END { exit !found }' CHANGELOG.md || { \
		echo 'CHANGELOG.md has no section "## [$(VERSION:v%=%)] - <date>"' >&2; exit 1; }

SKIP ?= publish,docker,sbom

snapshot: ### Make in bin/dist what a release would have, without SKIP (publish,docker,sbom)
	go run $(GORELEASER) release --snapshot --clean --skip=$(SKIP)

release: ### Release the tag of this commit as a draft, with GITHUB_TOKEN; only the workflow does this
	@mkdir -p bin
	$(MAKE) --no-print-directory release-notes VERSION=$$(git describe --exact-match --tags) >bin/release-notes.md
	go run $(GORELEASER) release --clean --release-notes bin/release-notes.md

syft: ### Install syft, which writes the lists of parts (SBOM)
	go install $(SYFT)

bench: redis-server ## Compare the library with its peers (14 minutes): test/bench/RESULTS.md
	cd test/bench && go run .
	go run ./tools/curves

bench-check: redis-server wrk ### Run each benchmark once
	cd test/bench && out=$$(mktemp -d) && go run . -quick -o $$out && go run . -http -quick -o $$out && rm -r $$out

bench-http: redis-server wrk ### Measure Caddy with and without locks, with wrk, which it installs (5 minutes): test/bench/RESULTS.md
	cd test/bench && go run . -http

postgres:
	@ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 || tools/debian.sh postgresql

wrk:
	@command -v wrk >/dev/null || tools/debian.sh wrk

redis-server:
	@[ -n "$$REDIS_SERVER" ] || command -v redis-server >/dev/null || command -v valkey-server >/dev/null || tools/debian.sh redis-server
