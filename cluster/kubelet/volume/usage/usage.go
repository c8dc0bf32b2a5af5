// Package usage measures what volumes take.
package usage

import (
	"context"
	"errors"
	"io"
	"os"

	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"github.com/coracle-project/coracle/cluster/kubelet/volume/layout"
	"github.com/coracle-project/coracle/cluster/kubelet/volume/mountpoint"
)

// countedDepth is how deep into a volume its files are counted.
const countedDepth = 128

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
// looked at.
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
	c := &count{ctx: ctx, device: top.Dev, linked: map[uint64]struct{}{}, inodes: 1, blocks: uint64(top.Blocks)}
	if err := c.add(fd, 0); err != nil {
		return nil, err
	}
	used := c.blocks * 512
	all.Time, all.UsedBytes, all.InodesUsed = metav1.Now(), &used, &c.inodes
	return all, nil
}

// count is what the files of one file system below a directory take.
type count struct {
	ctx            context.Context
	device         uint64
	linked         map[uint64]struct{} // files with more than one name, counted once
	blocks, inodes uint64
}

// add counts what is in the directory fd, and closes it.
func (c *count) add(fd, depth int) error {
	dir := os.NewFile(uintptr(fd), "volume")
	defer dir.Close()
	for {
		names, err := dir.Readdirnames(512)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err := errors.Join(err, c.ctx.Err()); err != nil {
			return err
		}
		for _, name := range names {
			var s unix.Stat_t
			if unix.Fstatat(fd, name, &s, unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT) != nil || s.Dev != c.device {
				continue // gone meanwhile, or not of this volume
			}
			folder := s.Mode&unix.S_IFMT == unix.S_IFDIR
			if s.Nlink > 1 && !folder {
				if _, counted := c.linked[s.Ino]; counted {
					continue
				}
				c.linked[s.Ino] = struct{}{}
			}
			c.inodes++
			c.blocks += uint64(s.Blocks)
			if !folder || depth >= countedDepth {
				continue
			}
			next, err := unix.Openat2(fd, name,
				&unix.OpenHow{Flags: layout.OpenDir, Resolve: unix.RESOLVE_NO_XDEV | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_BENEATH})
			if err != nil {
				continue
			}
			if err := c.add(next, depth+1); err != nil {
				return err
			}
		}
	}
}
