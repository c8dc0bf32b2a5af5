// Package fsgroup gives what is in volumes to the group of a pod's security context.
package fsgroup

import (
	"context"
	"errors"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
)

// Access is what a volume's group may do with what is in it.
type Access int

// The two kinds of volumes.
const (
	ReadOnly Access = iota
	ReadWrite
)

// Set makes everything below root belong to group: files are given its group
// and rights, directories set-group-ID too, so that what is made in them later belongs to it as
// well. It does nothing without a group. Links are changed themselves, never what they lead to.
//
// The root comes last: it says that all is done. Another pod may work in the volume meanwhile, so
// what has gone is no error.
func Set(ctx context.Context, root *os.Root, group *int64, may Access) error {
	if group == nil {
		return nil
	}
	err := fs.WalkDir(root.FS(), ".", func(name string, entry fs.DirEntry, err error) error {
		if name == "." {
			return err
		}
		if err == nil && entry.IsDir() {
			err = ctx.Err()
		}
		if err == nil {
			err = giveOne(root, name, *group, may)
		}
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	})
	if err != nil {
		return err
	}
	return giveOne(root, ".", *group, may)
}

func giveOne(root *os.Root, name string, group int64, may Access) error {
	if err := root.Lchown(name, -1, int(group)); err != nil {
		return err
	}
	info, err := root.Lstat(name)
	if err != nil {
		return err
	}
	if info.Mode()&fs.ModeSymlink != 0 {
		return nil
	}
	add := fs.FileMode(0o440)
	if may == ReadWrite {
		add = 0o660
	}
	if info.IsDir() {
		add |= 0o110 | fs.ModeSetgid
	}
	return root.Chmod(name, info.Mode()|add)
}

// Give makes what is in a volume belong to the pod's fsGroup, as far as its fsGroupChangePolicy
// says.
func Give(ctx context.Context, dir string, pod *v1.Pod) error {
	group := Of(pod)
	if group == nil {
		return nil
	}
	if policy := pod.Spec.SecurityContext.FSGroupChangePolicy; policy != nil && *policy == v1.FSGroupChangeOnRootMismatch {
		var s unix.Stat_t
		if err := unix.Lstat(dir, &s); err != nil {
			return &os.PathError{Op: "stat", Path: dir, Err: err}
		}
		const wanted = unix.S_ISGID | 0o770
		if int64(s.Gid) == *group && s.Mode&wanted == wanted {
			return nil
		}
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	return errors.Join(Set(ctx, root, group, ReadWrite), root.Close())
}

// Of returns the pod's fsGroup, nil if it has none.
func Of(pod *v1.Pod) *int64 {
	if pod.Spec.SecurityContext == nil {
		return nil
	}
	return pod.Spec.SecurityContext.FSGroup
}
