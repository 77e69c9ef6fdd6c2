package caddyredlock

import (
	"encoding/base64"
	"fmt"
	"os"
	"strings"

	"github.com/caddy-redlock/caddy-redlock/middleware"
)

// loadSealer reads the keys for the answers on the masters. Its errors don't show them.
func loadSealer(files []string) (*middleware.Sealer, error) {
	if len(files) == 0 {
		return nil, nil
	}
	keys := make([][]byte, len(files))
	for i, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("remember_keys: %w", err)
		}
		if keys[i], err = base64.StdEncoding.DecodeString(strings.TrimSpace(string(text))); err != nil {
			return nil, fmt.Errorf("remember_keys %s: not base64; make a key with: openssl rand -base64 32", file)
		}
	}
	sealer, err := middleware.NewSealer(keys...)
	if err != nil {
		return nil, fmt.Errorf("remember_keys: %w; make a key with: openssl rand -base64 32", err)
	}
	return sealer, nil
}
