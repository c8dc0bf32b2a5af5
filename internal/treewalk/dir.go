package treewalk

import "golang.org/x/sys/unix"

// OpenDir opens a directory below base, through no link and no mount.
func OpenDir(base int, path string) (int, error) {
	return unix.Openat2(base, path, &unix.OpenHow{
		Flags:   unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_XDEV,
	})
}

// Gone reports that a path changed under a walk, or left the file system.
func Gone(err error) bool {
	switch err {
	case unix.ENOENT, unix.ENOTDIR, unix.ELOOP, unix.EXDEV, unix.EAGAIN:
		return true
	}
	return false
}

// EachEntry calls f for all that an open directory holds from its offset on.
func EachEntry(fd int, f func(name string) error) error {
	buf := make([]byte, 8<<10)
	var names []string
	for {
		n, err := unix.Getdents(fd, buf)
		if err == unix.EINTR {
			continue
		}
		if err != nil || n == 0 {
			return err
		}
		_, _, names = unix.ParseDirent(buf[:n], -1, names[:0])
		for _, name := range names {
			if err := f(name); err != nil {
				return err
			}
		}
	}
}
