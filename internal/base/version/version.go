// Package version tells which version of this module a program was built with.
package version

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"os"
	"runtime/debug"
	"strings"
	"sync"
)

const module = "github.com/caddy-redlock/caddy-redlock"

// String returns the version, such as v0.1.0. For a build from a checkout, it is the tag or the pseudo-version that Go has recorded. Where Go has
// recorded none, or files that weren't committed, the version has a hash of the program, so that two builds have two versions.
func String() string { return once() }

var once = sync.OnceValue(func() string {
	version := ""
	if info, ok := debug.ReadBuildInfo(); ok {
		version = recorded(info)
	}
	switch {
	case version == "":
		return "devel-" + program()
	case strings.HasSuffix(version, "+dirty"):
		return version + "." + program()
	}
	return version
})

// recorded returns the version that Go has recorded, or "" if it has recorded none.
func recorded(info *debug.BuildInfo) string {
	for _, m := range append([]*debug.Module{&info.Main}, info.Deps...) {
		if m.Path == module {
			return strings.TrimPrefix(cmp.Or(m.Replace, m).Version, "(devel)") // a replacement is a folder, which has no version, or a fork
		}
	}
	return ""
}

// program returns a hash of the beginning of this program. A few kilobytes from there, Go's linker has written the build ID, which is a hash of
// everything that the program was built from.
func program() string {
	file, err := os.Open("/proc/self/exe") // on Linux this is the program that runs, even if an upgrade has replaced its file
	if err != nil {
		var path string
		if path, err = os.Executable(); err == nil {
			file, err = os.Open(path)
		}
	}
	if err != nil {
		return "unknown"
	}
	defer func() { _ = file.Close() }()
	hash := sha256.New()
	if _, err := io.CopyN(hash, file, 64<<10); err != nil && err != io.EOF {
		return "unknown"
	}
	return hex.EncodeToString(hash.Sum(nil)[:4])
}
