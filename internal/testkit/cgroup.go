package testkit

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
)

// MakeCgroups makes a cgroup in each hierarchy, as a kubelet wants its own to be there.
func MakeCgroups(name string) error {
	const top = "/sys/fs/cgroup"
	if _, err := os.Stat(filepath.Join(top, "cgroup.controllers")); err == nil { // the only hierarchy
		return os.MkdirAll(filepath.Join(top, name), 0o755)
	}
	tops, err := os.ReadDir(top)
	for _, d := range tops {
		// Links are other names of hierarchies.
		if d.IsDir() {
			err = errors.Join(err, os.MkdirAll(filepath.Join(top, d.Name(), name), 0o755))
		}
	}
	return err
}

// RemoveCgroups deletes a cgroup parent and what is below it, in each hierarchy. A
// runtime under test does not: its parent belongs to who named it, usually the kubelet.
func RemoveCgroups(name string) error {
	tops, err := filepath.Glob(filepath.Join("/sys/fs/cgroup/*", name))
	if err != nil {
		return err
	}
	for _, top := range append(tops, filepath.Join("/sys/fs/cgroup", name)) {
		var dirs []string
		walk := func(p string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				dirs = append(dirs, p)
			}
			return nil // what is gone is gone
		}
		_ = filepath.WalkDir(top, walk)
		for _, d := range slices.Backward(dirs) {
			if rerr := os.Remove(d); rerr != nil && !errors.Is(rerr, fs.ErrNotExist) {
				err = errors.Join(err, rerr)
			}
		}
	}
	return err
}
