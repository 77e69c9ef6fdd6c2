// Package check has only tests: of the files in deploy, as far as they can be tested without Docker, a cluster and a booted systemd. It
// is a module of its own because of what it needs for that: Kubernetes' types, Helm, and the parser of docker compose.
package check
