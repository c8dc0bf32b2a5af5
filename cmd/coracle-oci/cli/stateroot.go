package cli

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"github.com/moby/sys/userns"
	"golang.org/x/sys/unix"
)

// machineRoot is the state directory of the machine's root.
const machineRoot = "/run/coracle-oci"

// defaultRoot is below the user's runtime directory for who is not the machine's root.
func defaultRoot() string {
	if dir := runtimeDir(); dir != "" {
		return filepath.Join(dir, filepath.Base(machineRoot))
	}
	return machineRoot
}

// runtimeDir is the user's directory for what does not outlive a reboot, "" if there is none. Who
// becomes a user by su(1) or a service of it has no XDG_RUNTIME_DIR, though there may be one.
func runtimeDir() string {
	if isHostRoot() {
		return ""
	}
	if dir := os.Getenv("XDG_RUNTIME_DIR"); dir != "" {
		return dir
	}
	dir := "/run/user/" + strconv.Itoa(os.Geteuid())
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil || int(st.Uid) != os.Geteuid() || st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return ""
	}
	return dir
}

// isHostRoot says whether the user is the host's root. Root of a user namespace is not, unless it
// also has root's name: XDG_RUNTIME_DIR is then inherited from the namespace's creator.
func isHostRoot() bool {
	return os.Geteuid() == 0 && (!userns.RunningInUserNS() || os.Getenv("USER") == "root")
}

// makeStateRoot makes the state directory of who is not the machine's root. In a runtime directory
// only what has the sticky bit is kept from being tidied away (XDG Base Directory Specification).
func (a *app) makeStateRoot() error {
	if isHostRoot() || a.root != defaultRoot() {
		return nil
	}
	err := os.MkdirAll(a.root, 0o700)
	if err == nil {
		err = os.Chmod(a.root, 0o700|os.ModeSticky)
	}
	if err != nil && a.root == machineRoot {
		return fmt.Errorf("create the state directory: %w; set XDG_RUNTIME_DIR to a directory of yours, or give one with --root", err)
	}
	return err
}
