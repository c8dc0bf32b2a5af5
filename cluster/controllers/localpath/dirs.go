package localpath

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"

	"github.com/dustin/go-humanize"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/cluster/internal/rmtree"
)

// dirs are the directories of volumes. All users of the node are kept from them by root's mode; in
// a pod any user may write to its volume.
type dirs struct {
	root     string
	projects *projects
}

const (
	volumesDir  = "volumes"
	deletingDir = "deleting"
	openDir     = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC
)

// keepFree is the part of a disk, in percent, that no new volume may count on: with less the node
// evicts pods.
const keepFree = 10

// errData is that a directory is not empty.
var errData = errors.New("the directory has data")

// noRoom is that a disk is too full for another volume.
type noRoom struct {
	dir              string
	asked, left, all uint64
}

func (e *noRoom) Error() string {
	return fmt.Sprintf("the disk of %s has not enough room: %s are asked for, and of %s only %s are free, %d %% of all not counted: delete "+
		"volumes or files, or ask for less",
		e.dir, humanize.IBytes(e.asked), humanize.IBytes(e.all), humanize.IBytes(e.left), keepFree)
}

// VolumesDir returns the directory of volumes below root.
func VolumesDir(root string) string { return filepath.Join(root, volumesDir) }

// path returns where a volume is.
func (d dirs) path(name string) string { return filepath.Join(VolumesDir(d.root), name) }

// open opens one of the two directories, made if it is missing.
func (d dirs) open(dir string) (*os.File, error) {
	path := filepath.Join(d.root, dir)
	if err := errors.Join(os.MkdirAll(path, 0o700), os.Chmod(d.root, 0o700)); err != nil {
		return nil, err
	}
	return os.OpenFile(path, openDir, 0)
}

func plain(name string) error {
	if name == "" || name == "." || name == ".." || strings.ContainsAny(name, "/\x00") {
		return fmt.Errorf("%q is not usable as a directory's name", name)
	}
	return nil
}

// has says whether a volume's directory exists. Anything else in its place is an error.
func (d dirs) has(name string) (bool, error) {
	info, err := os.Lstat(d.path(name))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return false, nil
	case err != nil:
		return false, err
	case !info.IsDir():
		return false, fmt.Errorf("%s is no directory: remove it", d.path(name))
	}
	return true, nil
}

// make makes a volume's directory, so that it is there after a crash of the machine, too. Where the
// file system has quotas, it can take so many bytes. If it has, but none is left for this volume,
// unlimited says why.
func (d dirs) make(name string, bytes int64) (unlimited, err error) {
	if err := plain(name); err != nil {
		return nil, err
	}
	volumes, err := d.open(volumesDir)
	if err != nil {
		return nil, err
	}
	defer volumes.Close()
	parent := int(volumes.Fd())
	// It gets its name when it is complete, so what has the name has the mode.
	begun := fmt.Sprintf(".%s-%x", name, rand.Uint64())
	limited, err := d.makeLimited(parent, begun, uint64(max(bytes, 0)))
	if errors.Is(err, errNumbers) {
		unlimited, err = err, nil
	}
	if err == nil && !limited {
		err = unix.Mkdirat(parent, begun, 0o700)
	}
	if err != nil {
		return nil, &os.PathError{Op: "mkdir", Path: d.path(begun), Err: err}
	}
	err = unix.Fchmodat(parent, begun, 0o777, 0)
	if err == nil {
		err = unix.Renameat2(parent, begun, parent, name, unix.RENAME_NOREPLACE)
	}
	if err != nil {
		return nil, errors.Join(&os.PathError{Op: "make", Path: d.path(name), Err: err}, unix.Unlinkat(parent, begun, unix.AT_REMOVEDIR))
	}
	return unlimited, volumes.Sync()
}

// list returns the names of all volumes that are on disk, and clears up after a make that was cut
// off.
func (d dirs) list() ([]string, error) {
	entries, err := os.ReadDir(VolumesDir(d.root))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var names []string
	var errs []error
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), ".") {
			errs = append(errs, os.Remove(d.path(e.Name()))) // empty, or it stays
			continue
		}
		names = append(names, e.Name())
	}
	return names, errors.Join(errs...)
}

// discard removes a volume's directory if it is empty. It returns errData if it is not.
func (d dirs) discard(name string) error {
	if err := plain(name); err != nil {
		return err
	}
	err := unix.Rmdir(d.path(name))
	switch {
	case err == nil || errors.Is(err, unix.ENOENT):
		return nil
	case errors.Is(err, unix.ENOTEMPTY) || errors.Is(err, unix.EBUSY) || errors.Is(err, unix.ENOTDIR):
		return errData
	}
	return &os.PathError{Op: "rmdir", Path: d.path(name), Err: err}
}

// remove removes a volume's directory with all that is in it. If it is not there, it returns nil.
func (d dirs) remove(ctx context.Context, name string) error {
	if err := plain(name); err != nil {
		return err
	}
	volumes, err := d.open(volumesDir)
	if err != nil {
		return err
	}
	defer volumes.Close()
	deleting, err := d.open(deletingDir)
	if err != nil {
		return err
	}
	defer deleting.Close()
	doomed := fmt.Sprintf("%s-%x", name, rand.Uint64())
	err = unix.Renameat(int(volumes.Fd()), name, int(deleting.Fd()), doomed)
	moved := err == nil
	if !moved && !errors.Is(err, unix.ENOENT) {
		return &os.PathError{Op: "rename", Path: d.path(name), Err: err}
	}
	// The volume's object goes next: no power loss may bring its data back then.
	if err := errors.Join(deleting.Sync(), volumes.Sync()); err != nil {
		return err
	}
	if !moved {
		return d.clearOf(ctx, name)
	}
	if isSubvolume(int(deleting.Fd()), doomed) {
		_ = limit(int(deleting.Fd()), doomed, noLimit) // a full one could refuse even deletions
	}
	if err := rmtree.At(ctx, int(deleting.Fd()), doomed); err != nil {
		return fmt.Errorf("delete %s: %w", filepath.Join(d.root, deletingDir, doomed), err)
	}
	// A project keeps its limit: the next volume of its number sets another first, and the
	// directory's number may be one that a pod has taken from another volume.
	return nil
}

// clear removes what deletions that were cut off have left.
func (d dirs) clear(ctx context.Context) error { return d.clearOf(ctx, "") }

// clearOf removes what deletions of one volume have left, "" for all volumes.
func (d dirs) clearOf(ctx context.Context, name string) error {
	entries, err := os.ReadDir(filepath.Join(d.root, deletingDir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), name) {
			errs = append(errs, rmtree.Path(ctx, filepath.Join(d.root, deletingDir, e.Name())))
		}
	}
	return errors.Join(errs...)
}

// room fails with noRoom if the disk cannot take so many bytes more.
func (d dirs) room(bytes int64) error {
	volumes, err := d.open(volumesDir)
	if err != nil {
		return err
	}
	defer volumes.Close()
	var s unix.Statfs_t
	if err := unix.Fstatfs(int(volumes.Fd()), &s); err != nil {
		return &os.PathError{Op: "statfs", Path: volumes.Name(), Err: err}
	}
	block := uint64(s.Bsize)
	left, all := s.Bavail*block, s.Blocks*block
	if keep := all / 100 * keepFree; uint64(max(bytes, 0)) > left-min(left, keep) {
		return &noRoom{dir: d.root, asked: uint64(bytes), left: left, all: all}
	}
	return nil
}
