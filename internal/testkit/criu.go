package testkit

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// shimPath is the first directory of a shim's PATH, which is fixed.
const shimPath = "/usr/local/sbin"

// NoCRIU returns why nothing can be checkpointed on this machine: criu(8) is missing, or does not
// know this kernel. Call it within Isolate: a criu that hack/oci/build.sh has built is made visible
// to shims by a mount.
var NoCRIU = sync.OnceValue(func() string {
	installed, err := exec.LookPath("criu")
	why := "criu is not installed"
	if err == nil {
		if why = check(installed); why == "" {
			if slices.Contains([]string{shimPath, "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"}, filepath.Dir(installed)) {
				return ""
			}
			return share(installed)
		}
	}
	if built, err := FindBin("oci", "criu"); err == nil && check(built) == "" {
		return share(built)
	}
	return why
})

// check returns why a criu does not work here. It may log to its working directory.
func check(criu string) string {
	dir, err := os.MkdirTemp("", "criu-")
	if err != nil {
		return err.Error()
	}
	defer os.RemoveAll(dir)
	cmd := exec.Command(criu, "--no-default-config", "check")
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		return strings.TrimSpace(fmt.Sprintf("%s check: %v %.200s", criu, err, out))
	}
	return ""
}

// share makes a criu visible to shims in our own mount namespace.
func share(criu string) string {
	if err := unix.Mount("criu", shimPath, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=755"); err != nil {
		return fmt.Sprintf("mount on %s: %v", shimPath, err)
	}
	if err := os.Symlink(criu, filepath.Join(shimPath, "criu")); err != nil {
		return err.Error()
	}
	return ""
}
