package main

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// mountBelow returns a mount point at or below path, "" if there is none.
func mountBelow(path string) (string, error) {
	dir, err := filepath.EvalSymlinks(filepath.Dir(path)) // mounts are known by their real paths
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(filepath.Join(dir, filepath.Base(path))))
	if err != nil || len(mounts) == 0 {
		return "", err
	}
	return mounts[0].Mountpoint, nil
}

// removeCgroup removes the cgroup that pods were made in from every hierarchy that
// is mounted. One that has others' cgroups or processes in it stays.
func removeCgroup(path string) error {
	hierarchies, err := mountinfo.GetMounts(mountinfo.FSTypeFilter("cgroup", "cgroup2"))
	if err != nil {
		return fmt.Errorf("remove cgroup %s: %w", path, err)
	}
	var errs []error
	for _, h := range hierarchies {
		err := unix.Rmdir(filepath.Join(h.Mountpoint, path))
		if err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.EBUSY) && !errors.Is(err, unix.EROFS) {
			errs = append(errs, fmt.Errorf("remove cgroup %s in %s: %w", path, h.Mountpoint, err))
		}
	}
	return errors.Join(errs...)
}
