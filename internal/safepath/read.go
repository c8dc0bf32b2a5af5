package safepath

import (
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// OpenRegular opens a path for reading, following links within the root, if it
// is a regular file. It does not hang on a fifo or touch a device.
func (r *Root) OpenRegular(path string) (*os.File, error) {
	// Opening a device can act on it (a tape rewinds), so the kind is looked
	// at on a descriptor that opens nothing, and again on the one returned.
	if err := r.checkRegular(path); err != nil {
		return nil, err
	}
	f, err := r.OpenFile(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		f.Close()
		return nil, r.fail("stat", path, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		f.Close()
		return nil, r.fail("read", path, ErrNotRegular)
	}
	return f, nil
}

func (r *Root) checkRegular(path string) error {
	fd, err := r.openat(path, unix.O_PATH, 0)
	if err != nil {
		return r.fail("open", path, err)
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return r.fail("stat", path, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return r.fail("read", path, ErrNotRegular)
	}
	return nil
}

// ReadFile reads a regular file of at most limit bytes, following links within
// the root. A larger file is ErrTooLarge, a fifo, device or directory ErrNotRegular.
func (r *Root) ReadFile(path string, limit int64) ([]byte, error) {
	f, err := r.OpenRegular(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err != nil {
		return nil, r.fail("read", path, err)
	}
	if int64(len(data)) > limit {
		return nil, r.fail("read", path, ErrTooLarge)
	}
	return data, nil
}
