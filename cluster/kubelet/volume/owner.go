package volume

import (
	"context"
	"errors"
	"io/fs"
	"os"
)

// access is what a volume's group may do with what is in it.
type access int

// The two kinds of volumes.
const (
	readOnly access = iota
	readWrite
)

// giveToGroup makes everything below root belong to the pod's fsGroup: files are given its group
// and rights, directories set-group-ID too, so that what is made in them later belongs to it as
// well. It does nothing without a group. Links are changed themselves, never what they lead to.
//
// The root comes last: it says that all is done. Another pod may work in the volume meanwhile, so
// what has gone is no error.
func giveToGroup(ctx context.Context, root *os.Root, group *int64, may access) error {
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

func giveOne(root *os.Root, name string, group int64, may access) error {
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
	if may == readWrite {
		add = 0o660
	}
	if info.IsDir() {
		add |= 0o110 | fs.ModeSetgid
	}
	return root.Chmod(name, info.Mode()|add)
}
