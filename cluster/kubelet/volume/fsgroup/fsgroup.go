// Package fsgroup gives what is in volumes to the group of a pod's security context.
package fsgroup

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/coracle-project/coracle/cluster/kubelet/volume/layout"
)

// Access is what a volume's group may do with what is in it.
type Access int

// The two kinds of volumes.
const (
	ReadOnly Access = iota
	ReadWrite
)

// MaxDepth is how many directories deep the files of a volume are given to a group. The walk holds
// two descriptors for each level, and other pods may nest directories without an end meanwhile.
const MaxDepth = 128

// Set makes everything below the directory root belong to group: files are given its group and
// rights, directories set-group-ID too, so that what is made in them later belongs to it as well.
// It does nothing without a group. Links are changed themselves, never what they lead to, and no
// file is opened but directories.
//
// The root comes last: it says that all is done. Another pod may work in the volume meanwhile, so
// what has gone is no error. Files that the file system lets no one give, and those below MaxDepth,
// stay as they are, and so does the root then: the error is a *Left.
func Set(ctx context.Context, root *os.Root, group *int64, may Access) error {
	if group == nil {
		return nil
	}
	top, err := root.Open(".")
	if err != nil {
		return err
	}
	defer top.Close()
	w := walk{ctx: ctx, group: int(*group), add: 0o440}
	if may == ReadWrite {
		w.add = 0o660
	}
	fd := int(top.Fd())
	if err := w.below(fd, root.Name(), 0); err != nil {
		return err
	}
	if w.left.Count == 0 {
		if err := w.leave(root.Name(), w.give(fd)); err != nil {
			return err
		}
	}
	if w.left.Count > 0 {
		return &w.left
	}
	return nil
}

// Left is the error of a volume of which some files could not be given to the group.
type Left struct {
	Count int
	First error // that of the first of them
}

func (l *Left) Error() string {
	if l.Count == 1 {
		return l.First.Error()
	}
	return fmt.Sprintf("%v, and %d more files", l.First, l.Count-1)
}

// Unwrap returns the error of the first file.
func (l *Left) Unwrap() error { return l.First }

// walk gives the files of one volume to a group.
type walk struct {
	ctx   context.Context
	group int
	add   uint32 // rights of all files
	left  Left
}

// below gives all that is in the open directory dir, some names at a time: a pod may have made
// millions. path is for errors.
func (w *walk) below(dir int, path string, depth int) error {
	buf := make([]byte, 8<<10)
	var names []string
	for {
		n, err := unix.Getdents(dir, buf)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.ENOENT): // removed meanwhile
			return nil
		case err != nil:
			return &os.PathError{Op: "read", Path: path, Err: err}
		case n == 0:
			return nil
		}
		_, _, names = unix.ParseDirent(buf[:n], -1, names[:0])
		for _, name := range names {
			if err := w.ctx.Err(); err != nil {
				return err
			}
			if err := w.entry(dir, name, path, depth); err != nil {
				return err
			}
		}
	}
}

// entry gives what name is in dir, and all that is below it. It works on a descriptor, which stays
// that of one file whatever name is later.
func (w *walk) entry(dir int, name, path string, depth int) error {
	// The whole path of a file is not kept: another pod may have made it megabytes long.
	path = at(path, name)
	var s unix.Stat_t
	err := unix.Fstatat(dir, name, &s, unix.AT_SYMLINK_NOFOLLOW)
	if err != nil {
		return w.leave(path, err)
	}
	isDir := s.Mode&unix.S_IFMT == unix.S_IFDIR
	if !isDir && w.has(&s) {
		return nil
	}
	fd, err := unix.Openat2(dir, name, &unix.OpenHow{
		Flags: unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS,
	})
	if err != nil {
		return w.leave(path, err)
	}
	defer unix.Close(fd)
	if isDir {
		if err := w.tree(fd, path, depth+1); err != nil {
			return err
		}
	}
	return w.leave(path, w.give(fd))
}

// tree gives all that is in a directory, of which fd is an O_PATH descriptor.
func (w *walk) tree(fd int, path string, depth int) error {
	if depth >= MaxDepth {
		w.note(fmt.Errorf("%s: its files are more than %d directories deep", path, MaxDepth))
		return nil
	}
	inside, err := unix.Openat(fd, ".", layout.OpenDir, 0)
	if errors.Is(err, unix.ENOTDIR) { // another file has its place by now
		return nil
	}
	if err != nil {
		return w.leave(path, err)
	}
	defer unix.Close(inside)
	return w.below(inside, path, depth)
}

// leave notes what cannot be given. It returns the errors for which the volume is not to be used.
func (w *walk) leave(path string, err error) error {
	switch {
	case err == nil || errors.Is(err, unix.ENOENT):
		return nil
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES), errors.Is(err, unix.EROFS), errors.Is(err, unix.EOPNOTSUPP),
		errors.Is(err, unix.EDQUOT):
		w.note(&os.PathError{Op: "give to the group", Path: path, Err: err})
		return nil
	}
	return &os.PathError{Op: "give to the group", Path: path, Err: err}
}

func (w *walk) note(err error) {
	if w.left.Count++; w.left.Count == 1 {
		w.left.First = err
	}
}

// give gives the file of a descriptor, which may be an O_PATH one.
func (w *walk) give(fd int) error {
	var s unix.Stat_t
	if err := unix.Fstat(fd, &s); err != nil {
		return err
	}
	if w.has(&s) {
		return nil
	}
	if err := unix.Fchownat(fd, "", -1, w.group, unix.AT_EMPTY_PATH); err != nil {
		return err
	}
	if s.Mode&unix.S_IFMT == unix.S_IFLNK {
		return nil
	}
	// The way to an O_PATH descriptor's file. Its mode from before: the kernel takes set-user-ID away
	// when the group changes.
	return unix.Chmod(fmt.Sprintf("/proc/self/fd/%d", fd), s.Mode&^unix.S_IFMT|w.rights(&s))
}

// has says whether a file is the group's already.
func (w *walk) has(s *unix.Stat_t) bool {
	rights := w.rights(s)
	return s.Gid == uint32(w.group) && (s.Mode&rights == rights || s.Mode&unix.S_IFMT == unix.S_IFLNK)
}

// rights are those that a file gets.
func (w *walk) rights(s *unix.Stat_t) uint32 {
	if s.Mode&unix.S_IFMT == unix.S_IFDIR {
		return w.add | 0o110 | unix.S_ISGID
	}
	return w.add
}

// at is the path of a file for an error.
func at(dir, name string) string {
	const longest = 500
	if len(dir) > longest {
		return dir
	}
	return dir + "/" + name
}

// Give makes what is in a volume belong to the pod's fsGroup, as far as its fsGroupChangePolicy
// says. Files that cannot be given are logged, and the volume is used without: the file system's
// own rules decide what the pod may do with them, as with NFS servers that squash root.
func Give(ctx context.Context, dir string, pod *v1.Pod, log *slog.Logger) error {
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
	err = errors.Join(Set(ctx, root, group, ReadWrite), root.Close())
	if left := (*Left)(nil); errors.As(err, &left) {
		log.Warn("files of a volume not given to the pod's fsGroup", "pod", pod.Namespace+"/"+pod.Name, "files", left.Count, "err", left.First)
		return nil
	}
	return err
}

// Of returns the pod's fsGroup, nil if it has none.
func Of(pod *v1.Pod) *int64 {
	if pod.Spec.SecurityContext == nil {
		return nil
	}
	return pod.Spec.SecurityContext.FSGroup
}
