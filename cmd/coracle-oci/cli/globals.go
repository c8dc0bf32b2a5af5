package cli

import (
	"fmt"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/coracle-project/coracle/internal/version"
)

// globals makes what the global flags say.
func (a *app) globals() (err error) {
	if a.log, err = openLog(a.logFile, a.logFormat, a.debug); err != nil {
		return err
	}
	return a.checkGlobals()
}

// checkGlobals makes --root absolute.
func (a *app) checkGlobals() error {
	root, err := filepath.Abs(a.root)
	if err != nil {
		return err
	}
	if root == "/" {
		return fmt.Errorf("--root %q is the root directory, give one of its own", a.root)
	}
	a.root = root
	if _, err := a.rootlessCgroups(); err != nil {
		return err
	}
	return nil
}

// rootlessCgroups is nil for auto.
func (a *app) rootlessCgroups() (*bool, error) {
	if a.rootless == "" || strings.EqualFold(a.rootless, "auto") {
		return nil, nil
	}
	b, err := strconv.ParseBool(a.rootless)
	if err != nil {
		return nil, fmt.Errorf("--rootless %q is unknown, use true, false or auto", a.rootless)
	}
	return &b, nil
}

// versionText has the lines that callers read from runc --version, without the name.
func (a *app) versionText() string {
	var b strings.Builder
	b.WriteString(version.String())
	if version.Commit != "" {
		fmt.Fprintf(&b, "\ncommit: %s", version.Commit)
	}
	fmt.Fprintf(&b, "\nspec: %s\ngo: %s", specs.Version, runtime.Version())
	if a.extra != nil && a.extra.Version() != "" {
		fmt.Fprintf(&b, "\nlibseccomp: %s", a.extra.Version())
	}
	return b.String()
}
