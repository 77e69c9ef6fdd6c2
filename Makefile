STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2

# Where apt-get installs redis-server, these keep its service from being started: the tests start their own.
NO_SERVICE := RUNLEVEL=1 SYSTEMD_OFFLINE=1
SUDO := $(if $(filter 0,$(shell id -u)),,sudo)
APT := $(SUDO) env DEBIAN_FRONTEND=noninteractive $(NO_SERVICE) apt-get

.DEFAULT_GOAL := help
.PHONY: help build test fuzz soak lint bench bench-check bench-http redis-server

FUZZTIME ?= 60s

help: ## Show the targets
	@sed -n 's/^\([a-z-]*\):[^#]*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 14

build: ## Build bin/caddy: Caddy with the standard modules and this one
	go build -o bin/caddy ./cmd/caddy

test: redis-server ## Install redis-server where it is missing and run all tests
	go test -race -timeout 30m ./...
	cd examples/stacks && go test -race -timeout 5m ./...

# Go 1.26 may call the end of the time a failure (go.dev/issue/75804): one that has a failing input is real.
fuzz: ## Fuzz what reads requests and templates, FUZZTIME (60s) each
	@log=$$(mktemp); \
	for target in $$(sed -n 's/^func \(Fuzz[A-Za-z]*\)(.*/\1/p' middleware/*_test.go); do \
		go test -run '^$$' -fuzz "^$$target$$" -fuzztime $(FUZZTIME) ./middleware >$$log 2>&1; status=$$?; \
		echo "$$target: $$(grep execs $$log | tail -n 1)"; \
		if [ $$status != 0 ] && { grep -q 'Failing input' $$log || ! grep -qx ' *context deadline exceeded' $$log; }; then \
			cat $$log; exit 1; \
		fi; \
	done; rm $$log

soak: ## Run the simulation of the protocol over 100,000 worlds (hours)
	SEEDS=100000 go test -timeout 0 -run TestSimulation ./redlock

lint: build ## Check format, vet, staticcheck, go.mod and Caddyfile.example
	@test -z "$$(gofmt -l . | tee /dev/stderr)" || { echo 'run gofmt -w on these files' >&2; exit 1; }
	go vet ./...
	go run $(STATICCHECK) ./...
	go mod tidy -diff
	for module in examples/stacks bench; do ( \
		cd $$module && go vet ./... && go run $(STATICCHECK) ./... && go mod tidy -diff) || exit 1; \
	done
	bin/caddy validate --config Caddyfile.example
	bin/caddy fmt Caddyfile.example >/dev/null # fails, with the line, where the format differs

bench: redis-server ## Measure the library beside its peers (15 minutes): bench/RESULTS.md, bench/plots
	cd bench && go run .

bench-check: redis-server ## Test the benchmarks and run each once
	cd bench && go test ./...
	cd bench && out=$$(mktemp -d) && go run . -quick -o $$out && rm -r $$out

bench-http: redis-server ## Measure Caddy beside nginx, which it installs with wrk (3 minutes): bench/HTTP.md
	@if ! { command -v nginx && command -v wrk; } >/dev/null; then \
		$(APT) update && $(APT) install -y --no-install-recommends nginx wrk; \
	fi
	cd bench && go run . -http

redis-server:
	@if command -v redis-server >/dev/null; then exit; fi; \
	if ! command -v apt-get >/dev/null; then \
		echo 'redis-server is not on the PATH: install Redis, or Valkey with its redis-server command' >&2; exit 1; \
	fi; \
	$(APT) update && $(APT) install -y --no-install-recommends redis-server
