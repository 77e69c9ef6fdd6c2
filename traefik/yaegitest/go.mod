module github.com/caddy-redlock/caddy-redlock/traefik/yaegitest

go 1.26.0

replace github.com/caddy-redlock/caddy-redlock => ../..

require (
	github.com/caddy-redlock/caddy-redlock v0.0.0-00010101000000-000000000000
	github.com/mitchellh/mapstructure v1.5.0
	github.com/traefik/yaegi v0.16.1
)

require (
	github.com/cespare/xxhash/v2 v2.3.0 // indirect
	github.com/dunglas/httpsfv v1.1.1 // indirect
	github.com/dustin/go-humanize v1.1.0 // indirect
	github.com/felixge/httpsnoop v1.1.0 // indirect
	github.com/go-json-experiment/json v0.0.0-20260820222146-c27c302e5fc3 // indirect
	github.com/redis/go-redis/v9 v9.23.0 // indirect
	go.opentelemetry.io/otel v1.46.0 // indirect
	go.opentelemetry.io/otel/trace v1.46.0 // indirect
	go.uber.org/atomic v1.12.0 // indirect
	golang.org/x/net v0.60.0 // indirect
	golang.org/x/sys v0.49.0 // indirect
	golang.org/x/text v0.43.0 // indirect
)
