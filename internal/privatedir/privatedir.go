// Package privatedir keeps directories with containers' content closed to the host's users.
//
// Such a directory holds set-user-id programs, device nodes and files with any owner, as images and
// containers made them. A user of the host who can reach one of them can become its owner
// (CVE-2021-41103, CVE-2024-25621).
package privatedir

import (
	"fmt"
	"io/fs"
	"os"
	"syscall"
)

const (
	private = 0o700
	// grouped lets the members of the directory's group pass through, to the CRI socket.
	grouped = 0o710
)

// Make makes dir, and those above it, for root alone. A directory that is there already loses what
// others may do with it. The administrator may give one that holds the CRI socket to a group with
// mode 0710: that stays.
func Make(dir string) error {
	if err := os.MkdirAll(dir, private); err != nil {
		return err
	}
	info, err := os.Stat(dir)
	if err != nil {
		return err
	}
	mode := info.Mode()
	if mode&fs.ModeSticky != 0 {
		return fmt.Errorf("make %s private: other programs share it (mode %v); choose a directory of its own below it", dir, mode)
	}
	if st, ok := info.Sys().(*syscall.Stat_t); ok && int(st.Uid) != os.Geteuid() {
		return fmt.Errorf("make %s private: it belongs to user %d, who could open it again; run 'chown root %s'", dir, st.Uid, dir)
	}
	if perm := mode.Perm(); perm == private || perm == grouped {
		return nil
	}
	return os.Chmod(dir, private|mode&fs.ModeSetgid)
}
