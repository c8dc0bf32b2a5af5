// Package version says which build this is. The Makefile sets the variables with
// -ldflags -X; a plain `go build` falls back to what the toolchain recorded.
package version

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"
)

// Set by the linker.
var (
	Version string // "v0.1.0", "v0.1.0-3-gabcdef0" after a tag, or "abcdef0" before there is one
	Commit  string // full hash, "-dirty" appended if the tree was
	Date    string // of the commit, RFC 3339
)

// Number is the version alone, never empty: it is what CRI's Version call returns.
func Number() string {
	if Version != "" {
		return semantic(Version)
	}
	if b, ok := debug.ReadBuildInfo(); ok && b.Main.Version != "" && b.Main.Version != "(devel)" {
		return b.Main.Version
	}
	return "v0.0.0-dev"
}

// semantic makes a semantic version, as CRI wants it, of the name of a commit: the kubelet would
// make "Unknown" of that in its node's status.
func semantic(version string) string {
	var major, minor, patch int
	if n, _ := fmt.Sscanf(strings.TrimPrefix(version, "v"), "%d.%d.%d", &major, &minor, &patch); n == 3 {
		return version
	}
	return "v0.0.0-git-" + version
}

// String is one line for --version.
func String() string {
	commit, date := Commit, Date
	if commit == "" {
		commit, date = recorded()
	}
	s := Number()
	if commit != "" {
		s += " " + commit
	}
	if date != "" {
		s += " " + date
	}
	return fmt.Sprintf("%s %s %s/%s", s, runtime.Version(), runtime.GOOS, runtime.GOARCH)
}

// recorded returns the commit and its date from the build information.
func recorded() (commit, date string) {
	b, ok := debug.ReadBuildInfo()
	if !ok {
		return "", ""
	}
	for _, s := range b.Settings {
		switch s.Key {
		case "vcs.revision":
			commit = s.Value
		case "vcs.time":
			date = s.Value
		case "vcs.modified":
			if s.Value == "true" {
				commit += "-dirty"
			}
		}
	}
	return commit, date
}
