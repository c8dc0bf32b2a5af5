package safepath

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// OpenRegular opens a path for reading, following links within the root, if it
// is a regular file. It does not hang on a fifo or touch a device.
func (r *Root) OpenRegular(path string) (*os.File, error) {
	fd, _, err := r.openRegular(path)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), path), nil
}

func (r *Root) openRegular(path string) (fd int, st unix.Stat_t, err error) {
	found, err := r.openat(path, unix.O_PATH, 0)
	if err != nil {
		return -1, st, r.fail("open", path, err)
	}
	defer unix.Close(found)
	fd, st, err = ReopenRegular(found, unix.O_RDONLY)
	return fd, st, r.fail("read", path, err)
}

// OpenRegularAt opens an entry of a directory for reading, if it is a regular file. A link is not
// followed: it is ErrNotRegular.
func OpenRegularAt(dir int, name string) (*os.File, error) {
	found, err := ignoringEINTR(func() (int, error) {
		return unix.Openat(dir, name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	})
	if err != nil {
		return nil, err
	}
	defer unix.Close(found)
	fd, _, err := ReopenRegular(found, unix.O_RDONLY)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), name), nil
}

// ReopenRegular opens what an O_PATH descriptor refers to with open(2)'s flags, if it is a regular
// file, and describes it. The open alone can act on a device (a tape rewinds, a watchdog starts),
// and the host's root may open any, so the kind is checked first, on the descriptor that has opened
// nothing. By name, another file could take its place in between; /proc/self/fd is the one that was
// checked. No one can keep it waiting, by a lease say.
func ReopenRegular(found, flags int) (fd int, st unix.Stat_t, err error) {
	if err := unix.Fstat(found, &st); err != nil {
		return -1, st, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return -1, st, ErrNotRegular
	}
	fd, err = ignoringEINTR(func() (int, error) {
		return unix.Open(procName(found), flags|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	})
	return fd, st, err
}

// ReadFile reads a regular file of at most limit bytes, following links within
// the root. A larger file is ErrTooLarge, a fifo, device or directory ErrNotRegular.
//
// Files of proc have the size 0 and are not read: a link in a container could lead to its
// /proc/kmsg, which gives each line of the kernel's log to one reader only.
func (r *Root) ReadFile(path string, limit int64) ([]byte, error) {
	fd, st, err := r.openRegular(path)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	if st.Size == 0 {
		return nil, nil
	}
	// One byte more, so that a file that has not grown is read in two calls.
	data := make([]byte, 0, min(st.Size, limit)+1)
	for int64(len(data)) <= limit {
		if len(data) == cap(data) {
			data = append(data, 0)[:len(data)]
		}
		n, err := ignoringEINTR(func() (int, error) { return unix.Read(fd, data[len(data):cap(data)]) })
		if err != nil {
			return nil, r.fail("read", path, err)
		}
		if n == 0 {
			return data, nil
		}
		data = data[:len(data)+n]
	}
	return nil, r.fail("read", path, ErrTooLarge)
}

func ignoringEINTR(call func() (int, error)) (int, error) {
	for {
		n, err := call()
		if !errors.Is(err, unix.EINTR) {
			return n, err
		}
	}
}
