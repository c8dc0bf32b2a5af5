// Package freespace says how many bytes a file system has left, and refuses to take those that
// others on it need.
package freespace

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Left is how many bytes may still be written to a file system, without those that are kept for
// root.
func Left(st *unix.Statfs_t) int64 { return int64(st.Bavail) * st.Bsize }

// At is what is left on the file system of a path.
func At(path string) (int64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		return 0, fmt.Errorf("statfs %s: %w", path, err)
	}
	return Left(&st), nil
}

// Of is what is left on the file system of an open file, wherever that was moved.
func Of(f *os.File) (int64, error) {
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &st); err != nil {
		return 0, fmt.Errorf("statfs %s: %w", f.Name(), err)
	}
	return Left(&st), nil
}

// Keep fails with unix.ENOSPC if n bytes more would leave fewer than keep of those that are left at
// a place.
func Keep(place string, left, n, keep int64) error {
	if left-keep >= n {
		return nil
	}
	return fmt.Errorf("%d bytes are left on the file system of %s, not enough for %d more with %d kept free: %w", left, place, n, keep,
		unix.ENOSPC)
}
