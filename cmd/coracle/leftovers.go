package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// What the kubelet makes outside of its directory and leaves when it ends, as its pods may go on:
// mounts of volumes, cgroups, logs. When down has removed the pods, no one uses these any more.

// unmountBelow unmounts what the kubelet has mounted for pods' volumes, innermost first.
func unmountBelow(dir string) error {
	dir, err := filepath.EvalSymlinks(dir) // mounts are known by their real paths
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(dir))
	if err != nil {
		return err
	}
	slices.SortFunc(mounts, func(a, b *mountinfo.Info) int { return strings.Compare(b.Mountpoint, a.Mountpoint) })
	for _, m := range mounts {
		if m.Mountpoint == dir {
			continue // an operator's own disk
		}
		if err := unix.Unmount(m.Mountpoint, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
			return fmt.Errorf("unmount %s: %w", m.Mountpoint, err)
		}
	}
	return nil
}

// removeCgroups removes the kubelet's cgroups below parent from every hierarchy, and parent with
// them if it is then empty. A cgroup with a process in it is left alone: it is not one of ours.
func removeCgroups(parent string) error {
	const mounts = "/sys/fs/cgroup"
	roots := []string{mounts}
	entries, err := os.ReadDir(mounts)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.IsDir() {
			roots = append(roots, filepath.Join(mounts, e.Name()))
		}
	}
	for _, root := range roots {
		top := filepath.Join(root, parent, "kubepods")
		var dirs []string
		err := filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				dirs = append(dirs, path)
			}
			return nil
		})
		if err != nil {
			return err
		}
		for _, dir := range slices.Backward(dirs) {
			if err := os.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.EBUSY) {
				return err
			}
		}
		if filepath.Clean(parent) != "/" && len(dirs) > 0 {
			_ = os.Remove(filepath.Join(root, parent)) // unless others have cgroups there
		}
	}
	return nil
}

// removePodLogs removes the logs of the pods that a kubelet had, and the links to them that it
// also makes for log collectors.
func removePodLogs(kubelet, logs string) error {
	pods, err := os.ReadDir(filepath.Join(kubelet, "pods"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	links := filepath.Join(filepath.Dir(logs), "containers")
	for _, pod := range pods {
		dirs, err := filepath.Glob(filepath.Join(logs, "*_"+pod.Name()))
		if err != nil {
			return err
		}
		for _, dir := range dirs {
			if err := errors.Join(removeLinksInto(links, dir), os.RemoveAll(dir)); err != nil {
				return err
			}
		}
	}
	_, _ = os.Remove(links), os.Remove(logs) // unless others have files there
	return nil
}

func removeLinksInto(links, dir string) error {
	entries, err := os.ReadDir(links)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, e := range entries {
		link := filepath.Join(links, e.Name())
		if target, lerr := os.Readlink(link); lerr == nil && strings.HasPrefix(target, dir+"/") {
			err = errors.Join(err, os.Remove(link))
		}
	}
	return err
}
