// Package usage measures what volumes take.
package usage

import (
	"context"
	"errors"
	"os"

	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"github.com/coracle-project/coracle/cluster/kubelet/volume/layout"
	"github.com/coracle-project/coracle/cluster/kubelet/volume/mountpoint"
)

// OfFileSystem returns the figures of the file system that path is on. It looks at no file.
func OfFileSystem(path string) (*statsapi.FsStats, error) {
	var fs unix.Statfs_t
	if err := unix.Statfs(path, &fs); err != nil {
		return nil, &os.PathError{Op: "statfs", Path: path, Err: err}
	}
	return figures(&fs), nil
}

// figures are those of a file system.
func figures(fs *unix.Statfs_t) *statsapi.FsStats {
	block := uint64(fs.Bsize)
	available, capacity, used := fs.Bavail*block, fs.Blocks*block, (fs.Blocks-fs.Bfree)*block
	inodes, inodesFree, inodesUsed := fs.Files, fs.Ffree, fs.Files-fs.Ffree
	return &statsapi.FsStats{
		Time: metav1.Now(), AvailableBytes: &available, CapacityBytes: &capacity, UsedBytes: &used,
		Inodes: &inodes, InodesFree: &inodesFree, InodesUsed: &inodesUsed,
	}
}

// Of returns what a directory takes. If it is no file system of its own, each of its files is
// looked at, however deep it is, but not what is mounted below.
func Of(ctx context.Context, dir string) (*statsapi.FsStats, error) {
	fd, err := unix.Open(dir, layout.OpenDir, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: dir, Err: err}
	}
	var fs unix.Statfs_t
	var top unix.Stat_t
	if err := errors.Join(unix.Fstatfs(fd, &fs), unix.Fstat(fd, &top)); err != nil {
		unix.Close(fd)
		return nil, err
	}
	all := figures(&fs)
	if mountpoint.Is(dir) { // a file system of its own, which knows
		unix.Close(fd)
		return all, nil
	}
	c := &count{ctx: ctx, linked: map[file]struct{}{}, inodes: 1, blocks: uint64(top.Blocks)}
	if err := c.add(fd, top.Dev, 0); err != nil {
		return nil, err
	}
	used := c.blocks * 512
	all.Time, all.UsedBytes, all.InodesUsed = metav1.Now(), &used, &c.inodes
	return all, nil
}
