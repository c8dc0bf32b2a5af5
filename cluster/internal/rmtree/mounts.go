package rmtree

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Unmounted returns nil if nothing is mounted below the directory path, and an error with EBUSY if
// something is. No other process may write to the tree. It looks at no file system that is mounted
// there, because one may hang, and it reads no list of the machine's mounts, because that is long
// where there are many pods. If there is no such directory, it returns nil.
func Unmounted(path string) error {
	fd, err := unix.Open(path, openDir, 0)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return &os.PathError{Op: "open", Path: path, Err: err}
	}
	return unmounted(os.NewFile(uintptr(fd), path))
}

// unmounted closes dir.
func unmounted(dir *os.File) error {
	defer dir.Close()
	entries, err := dir.ReadDir(-1) // their types are in the directory: it is not a mount that is asked
	if err != nil {
		return err
	}
	for _, e := range entries {
		path := filepath.Join(dir.Name(), e.Name())
		how := unix.OpenHow{
			Flags:   unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC,
			Resolve: unix.RESOLVE_NO_XDEV,
		}
		if e.IsDir() {
			how.Flags = openDir
		}
		fd, err := unix.Openat2(int(dir.Fd()), e.Name(), &how)
		switch {
		case errors.Is(err, unix.EXDEV):
			return fmt.Errorf("%s is still mounted: %w", path, unix.EBUSY)
		case err != nil:
			return &os.PathError{Op: "open", Path: path, Err: err}
		case e.IsDir():
			if err := unmounted(os.NewFile(uintptr(fd), path)); err != nil {
				return err
			}
		default:
			unix.Close(fd)
		}
	}
	return nil
}
