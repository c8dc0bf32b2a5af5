package testkit

import (
	"os"
	"path/filepath"
	"testing"
)

// Crun is a command that runs Debian's crun. That refuses hosts which have version 1 of cgroups
// and controllers in version 2, too, so on these it does not get to see the latter.
func Crun(t testing.TB) string {
	t.Helper()
	const crun, unified = "/usr/bin/crun", "/sys/fs/cgroup/unified"
	if _, err := os.Stat(filepath.Join(unified, "cgroup.controllers")); err != nil {
		return crun
	}
	path := filepath.Join(t.TempDir(), "crun")
	script := "#!/bin/sh\nexec unshare --mount sh -c 'umount " + unified + " && exec " + crun + " \"$@\"' crun \"$@\"\n"
	if err := os.WriteFile(path, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}
