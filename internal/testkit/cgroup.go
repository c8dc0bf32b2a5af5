package testkit

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
)

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
