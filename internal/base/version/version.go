// Package version tells which version of this module a program was built with.
package version

import (
	"cmp"
	"runtime/debug"
)

const (
	module = "github.com/caddy-redlock/caddy-redlock"
	// unversioned is what Go itself calls a module that was built from a folder without a version.
	unversioned = "(devel)"
)

// String returns the version, such as v0.1.0. For a build from a checkout, it is the tag or the pseudo-version that Go has recorded, or (devel) if Go
// has recorded none.
func String() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return unversioned
	}
	return of(info)
}

func of(info *debug.BuildInfo) string {
	if info.Main.Path == module {
		return cmp.Or(info.Main.Version, unversioned)
	}
	for _, dep := range info.Deps {
		if dep.Path != module {
			continue
		}
		if dep.Replace != nil { // by a folder, which has no version, or by a fork
			dep = dep.Replace
		}
		return cmp.Or(dep.Version, unversioned)
	}
	return unversioned
}
