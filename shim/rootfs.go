package shim

import (
	"fmt"
	"path/filepath"
	"strings"

	"github.com/containerd/containerd/api/types"
	"golang.org/x/sys/unix"
)

// mountRootfs mounts what containerd wants as the root file system at rootfs in the
// bundle. (coracled mounts before it calls.) undo takes it off again.
func mountRootfs(bundle string, mounts []*types.Mount) (undo func(), err error) {
	target := filepath.Join(bundle, "rootfs")
	done := 0
	undo = func() {
		for ; done > 0; done-- {
			_ = unix.Unmount(target, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
		}
	}
	for _, m := range mounts {
		flags, data := mountFlags(m.Options)
		if err := unix.Mount(m.Source, target, m.Type, flags, data); err != nil {
			undo()
			return nil, fmt.Errorf("mount %s at %s: %w", m.Type, target, err)
		}
		done++
		if flags&unix.MS_BIND != 0 && flags&unix.MS_RDONLY != 0 { // a bind mount takes flags only afterwards
			if err := unix.Mount("", target, "", flags|unix.MS_REMOUNT, ""); err != nil {
				undo()
				return nil, fmt.Errorf("remount %s read-only: %w", target, err)
			}
		}
	}
	return undo, nil
}

// mountFlags divides mount options into flags and the file system's own data.
func mountFlags(options []string) (flags uintptr, data string) {
	known := map[string]uintptr{
		"ro": unix.MS_RDONLY, "nosuid": unix.MS_NOSUID, "nodev": unix.MS_NODEV, "noexec": unix.MS_NOEXEC,
		"noatime": unix.MS_NOATIME, "relatime": unix.MS_RELATIME, "sync": unix.MS_SYNCHRONOUS,
		"bind": unix.MS_BIND, "rbind": unix.MS_BIND | unix.MS_REC, "rw": 0,
	}
	var own []string
	for _, o := range options {
		if f, ok := known[o]; ok {
			flags |= f
		} else {
			own = append(own, o)
		}
	}
	return flags, strings.Join(own, ",")
}
