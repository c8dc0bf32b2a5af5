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

// mountTable is what is mounted below the kubelet's directory, as the kernel lists it.
type mountTable struct {
	rootDir string
	// real is rootDir without links, as the kernel lists mounts. It is set before the first
	// question.
	real string
}

// at lists what is mounted on path and below it. It reads the list of mounts and looks at no
// file system: that of a driver that has died may hang.
func (m *mountTable) at(path string) ([]*mountinfo.Info, error) {
	return mountinfo.GetMounts(mountinfo.PrefixFilter(m.listed(path)))
}

// listed is a path as the kernel lists mounts.
func (m *mountTable) listed(path string) string {
	if rest, ok := strings.CutPrefix(path, m.rootDir+"/"); ok {
		return m.real + "/" + rest
	}
	return path
}

// has says whether something is mounted on path.
func (m *mountTable) has(path string) (bool, error) {
	mounts, err := mountinfo.GetMounts(mountinfo.SingleEntryFilter(m.listed(path)))
	return len(mounts) > 0, err
}

// removePlace removes the directory or file that a driver had mounted on, when nothing is mounted
// there any more. It never removes what is in a directory.
func (m *mountTable) removePlace(path string) error {
	mounts, err := m.at(path)
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

// makePlace makes the directory that a driver stages a volume at. Where something is mounted, it
// exists, and is not looked at: the file system may hang.
func (m *mountTable) makePlace(path string) error {
	if mounted, err := m.has(path); mounted || err != nil {
		return err
	}
	err := os.MkdirAll(path, 0o750)
	if errors.Is(err, os.ErrExist) {
		return nil
	}
	return err
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
