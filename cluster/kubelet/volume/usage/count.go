package usage

import (
	"context"
	"encoding/binary"
	"errors"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/cluster/kubelet/volume/layout"
)

// heldDepth is how many directories of a tree are open at once. What is deeper is walked with two
// descriptors: a pod may nest directories without an end, so that its files are not counted, or to
// take all descriptors.
const heldDepth = 64

// file names one.
type file struct{ device, inode uint64 }

// count is what the files below a directory take.
type count struct {
	ctx            context.Context
	linked         map[file]struct{} // files with more than one name, counted once
	blocks, inodes uint64
	// buffers are for the names in the directories that are open, by their depth.
	buffers [heldDepth + 1][]byte
}

// add counts what is in the directory fd of a device, and closes it.
func (c *count) add(fd int, device uint64, depth int) error {
	if depth >= heldDepth {
		return c.deep(fd)
	}
	defer unix.Close(fd)
	return eachEntry(fd, c.buffer(depth), func(name string, _ int64) error {
		inside, s, err := c.entry(fd, device, name)
		if err != nil || inside < 0 {
			return err
		}
		return c.add(inside, s.Dev, depth+1)
	})
}

// level is a directory on the way to the one that is read.
type level struct {
	file
	next int64 // where reading it goes on (lseek)
}

// errDown ends the reading of a directory for one in it.
var errDown = errors.New("a directory")

// deep is add with one directory open at a time. It goes back to the one above by "..", which may
// be another one if a program moves directories meanwhile: what is left of those above is not
// counted then.
func (c *count) deep(fd int) error {
	defer func() { unix.Close(fd) }()
	var above []level
	for {
		var s unix.Stat_t
		if err := unix.Fstat(fd, &s); err != nil {
			return err
		}
		var next int64
		down := -1
		// Few names at a time: they are read again after each directory.
		err := eachEntry(fd, c.buffer(heldDepth)[:1<<10], func(name string, after int64) (err error) {
			down, _, err = c.entry(fd, s.Dev, name)
			if err == nil && down >= 0 {
				next, err = after, errDown
			}
			return err
		})
		switch {
		case errors.Is(err, errDown):
			above = append(above, level{file{s.Dev, s.Ino}, next})
			unix.Close(fd)
			fd = down
			continue
		case err != nil:
			return err
		case len(above) == 0:
			return nil
		}
		back := above[len(above)-1]
		above = above[:len(above)-1]
		up, err := unix.Openat(fd, "..", layout.OpenDir, 0)
		if err != nil {
			return nil // it was moved or removed
		}
		unix.Close(fd)
		fd = up
		if err := unix.Fstat(fd, &s); err != nil {
			return err
		}
		if back.file != (file{s.Dev, s.Ino}) {
			return nil
		}
		if _, err := unix.Seek(fd, back.next, unix.SEEK_SET); err != nil {
			return err
		}
	}
}

// entry counts one name in the directory dir of a device. If it is a directory, it is returned
// open, else -1.
func (c *count) entry(dir int, device uint64, name string) (inside int, s unix.Stat_t, err error) {
	if err := c.ctx.Err(); err != nil {
		return -1, s, err
	}
	if unix.Fstatat(dir, name, &s, unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT) != nil {
		return -1, s, nil // gone meanwhile
	}
	if s.Mode&unix.S_IFMT != unix.S_IFDIR {
		if s.Dev == device && c.isNew(&s) { // else it is mounted
			c.take(&s)
		}
		return -1, s, nil
	}
	if s.Dev == device {
		c.take(&s)
	}
	inside, err = unix.Openat2(dir, name,
		&unix.OpenHow{Flags: layout.OpenDir, Resolve: unix.RESOLVE_NO_XDEV | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_BENEATH})
	if err != nil {
		return -1, s, nil // a mount, or gone
	}
	if s.Dev != device { // a subvolume of btrfs, which any user may make, is a device of its own and no mount
		c.take(&s)
	}
	return inside, s, nil
}

func (c *count) buffer(depth int) []byte {
	if c.buffers[depth] == nil {
		c.buffers[depth] = make([]byte, 8<<10)
	}
	return c.buffers[depth]
}

func (c *count) take(s *unix.Stat_t) {
	c.inodes++
	c.blocks += uint64(s.Blocks)
}

// isNew reports whether a file was not counted by another name.
func (c *count) isNew(s *unix.Stat_t) bool {
	if s.Nlink <= 1 {
		return true
	}
	f := file{s.Dev, s.Ino}
	if _, counted := c.linked[f]; counted {
		return false
	}
	c.linked[f] = struct{}{}
	return true
}

// eachEntry calls f with each name in the directory fd, from where it was read to, and with where
// the next one is.
func eachEntry(fd int, buf []byte, f func(name string, next int64) error) error {
	for {
		n, err := unix.Getdents(fd, buf)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.ENOENT): // it was removed meanwhile
			return nil
		case err != nil || n == 0:
			return err
		}
		for rest := buf[:n]; len(rest) > 0; {
			// struct linux_dirent64 (getdents(2)): inode, offset, length, type, name
			next, length := int64(binary.NativeEndian.Uint64(rest[8:])), binary.NativeEndian.Uint16(rest[16:])
			name := rest[19:length]
			if end := slices.Index(name, 0); end >= 0 {
				name = name[:end]
			}
			rest = rest[length:]
			if s := string(name); s != "." && s != ".." {
				if err := f(s, next); err != nil {
					return err
				}
			}
		}
	}
}
