package main

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/moby/sys/mountinfo"
)

// removeTree removes a directory with all that is in it. Mount points in it, or the directory
// itself if it is one, are an operator's own disks: they are emptied and stay mounted. It returns
// those.
func removeTree(dir string) (emptied []string, err error) {
	at, err := filepath.EvalSymlinks(dir) // mounts are known by their real paths
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	infos, err := mountinfo.GetMounts(mountinfo.PrefixFilter(at))
	if err != nil {
		return nil, err
	}
	if len(infos) == 0 {
		return nil, os.RemoveAll(dir)
	}
	for _, m := range infos {
		emptied = append(emptied, m.Mountpoint)
	}
	slices.Sort(emptied)
	emptied = slices.Compact(emptied) // one may cover another
	return emptied, empty(at, emptied)
}

// empty removes all in dir that is no mount point and does not lead to one.
func empty(dir string, mounts []string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		if slices.ContainsFunc(mounts, func(m string) bool { return strings.HasPrefix(m+"/", path+"/") }) {
			errs = append(errs, empty(path, mounts))
		} else {
			errs = append(errs, os.RemoveAll(path))
		}
	}
	return errors.Join(errs...)
}
