package csi

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// mountsAt lists what is mounted on path and below it. It reads the list of mounts and looks at no
// file system: that of a driver that has died may hang.
func (n *Node) mountsAt(path string) ([]*mountinfo.Info, error) {
	return mountinfo.GetMounts(mountinfo.PrefixFilter(n.listed(path)))
}

// listed is a path as the kernel lists mounts.
func (n *Node) listed(path string) string {
	if rest, ok := strings.CutPrefix(path, n.opts.RootDir+"/"); ok {
		return n.real + "/" + rest
	}
	return path
}

// isMounted says whether something is mounted on path.
func (n *Node) isMounted(path string) (bool, error) {
	mounts, err := mountinfo.GetMounts(mountinfo.SingleEntryFilter(n.listed(path)))
	return len(mounts) > 0, err
}

// removePlace removes the directory or file that a driver had mounted on, when nothing is mounted
// there any more. It never removes what is in a directory.
func (n *Node) removePlace(path string) error {
	mounts, err := n.mountsAt(path)
	if err != nil {
		return err
	}
	if len(mounts) > 0 {
		return fmt.Errorf("%s is still mounted, though the driver says that it is not: unmount it, or restart the driver",
			mounts[len(mounts)-1].Mountpoint)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// isDevice says whether path is a block device.
func isDevice(path string) bool {
	var s unix.Stat_t
	return unix.Stat(path, &s) == nil && s.Mode&unix.S_IFMT == unix.S_IFBLK
}

// globQuote makes a path mean itself in a pattern.
func globQuote(path string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(path)
}
