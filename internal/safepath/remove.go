package safepath

import "golang.org/x/sys/unix"

// Remove deletes a file or an empty directory.
func (d *Dir) Remove(name string) error {
	return d.at("remove", name, func() error { return removeAt(d.fd, name) })
}

// RemoveAll deletes an entry with everything in it; nothing there is success.
// It descends by descriptors, so a directory that is swapped for a link while it
// works is removed as a link. However deep directories nest, it holds few of them open.
func (d *Dir) RemoveAll(name string) error {
	return d.at("remove", name, func() error { return removeAllAt(d.fd, name) })
}

// removeAt chooses between unlink and rmdir as os.Remove does: files are the
// usual case, and Linux answers EISDIR for directories.
func removeAt(dirfd int, name string) error {
	err := unix.Unlinkat(dirfd, name, 0)
	if err == unix.EISDIR || err == unix.EPERM {
		if rmdir := unix.Unlinkat(dirfd, name, unix.AT_REMOVEDIR); rmdir != unix.ENOTDIR {
			return rmdir
		}
	}
	return err
}

// maxHeld is how many directories a removal holds open on its way down. Each deeper one is closed
// while the removal is below, and opened again as "..", if that is still the directory it was:
// images and containers can nest directories without limit, and the daemon's descriptors and memory
// have one.
const maxHeld = 32

// level is a directory that is being emptied.
type level struct {
	name     string // in the level above
	fd       int    // -1: closed
	dev, ino uint64
	names    []string // some that are still to be removed; none of a closed one
}

// removal is the way from a directory down to the one that is being emptied.
type removal struct {
	top    int // the directory that the first level is in
	levels []level
}

func removeAllAt(dirfd int, name string) error {
	r := removal{top: dirfd}
	defer r.close()
	if err := r.remove(dirfd, name); err != nil {
		return err
	}
	for len(r.levels) > 0 {
		if err := r.step(); err != nil {
			return err
		}
	}
	return nil
}

// step removes one entry of the last level, or that level if it is empty.
func (r *removal) step() error {
	l := &r.levels[len(r.levels)-1]
	if len(l.names) == 0 {
		batch := 32 << 10
		if len(r.levels) > maxHeld {
			batch = 2 << 10 // these names are dropped and read again for each directory below
		}
		var err error
		if l.names, err = namesIn(l.fd, make([]byte, batch)); err != nil {
			return err
		}
	}
	if len(l.names) == 0 {
		return r.up()
	}
	next := l.names[len(l.names)-1]
	l.names = l.names[:len(l.names)-1]
	return r.remove(l.fd, next)
}

// remove deletes a file or an empty directory, and goes down into a directory that is not empty.
func (r *removal) remove(dirfd int, name string) error {
	err := removeAt(dirfd, name)
	if err == nil || err == unix.ENOENT {
		return nil
	}
	if err != unix.ENOTEMPTY && err != unix.EEXIST {
		return err
	}
	fd, err := unix.Openat(dirfd, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err == unix.ENOENT {
		return nil
	}
	if err != nil {
		return err
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		unix.Close(fd)
		return err
	}
	if n := len(r.levels); n > maxHeld {
		r.levels[n-1].close()
	}
	r.levels = append(r.levels, level{name: name, fd: fd, dev: st.Dev, ino: st.Ino})
	return nil
}

// up deletes the directory that has been emptied, and goes on in the one above.
func (r *removal) up() error {
	n := len(r.levels) - 1
	l := &r.levels[n]
	above := r.top
	if n > 0 {
		if err := r.levels[n-1].wake(l.fd); err != nil {
			return err
		}
		above = r.levels[n-1].fd
	}
	l.close()
	r.levels = r.levels[:n]
	if err := unix.Unlinkat(above, l.name, unix.AT_REMOVEDIR); err != nil && err != unix.ENOENT {
		return err
	}
	return nil
}

// wake opens a closed directory again, by one that is in it. If that was moved elsewhere meanwhile,
// the removal must not go on there.
func (l *level) wake(below int) error {
	if l.fd >= 0 {
		return nil
	}
	fd, err := unix.Openat(below, "..", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	var st unix.Stat_t
	err = unix.Fstat(fd, &st)
	if err == nil && (st.Dev != l.dev || st.Ino != l.ino) {
		err = ErrEscapes
	}
	if err != nil {
		unix.Close(fd)
		return err
	}
	l.fd = fd
	return nil
}

func (l *level) close() {
	if l.fd >= 0 {
		unix.Close(l.fd)
		l.fd, l.names = -1, nil
	}
}

func (r *removal) close() {
	for i := range r.levels {
		r.levels[i].close()
	}
}

// namesIn reads as many names of a directory as fit into buf, from its start: removing while
// reading may skip entries on some file systems, so it is read again until it is empty.
func namesIn(fd int, buf []byte) ([]string, error) {
	if _, err := unix.Seek(fd, 0, unix.SEEK_SET); err != nil {
		return nil, err
	}
	for {
		n, err := unix.Getdents(fd, buf)
		if err == unix.EINTR {
			continue
		}
		if err != nil || n == 0 {
			return nil, err
		}
		if _, _, names := unix.ParseDirent(buf[:n], -1, nil); len(names) > 0 {
			return names, nil
		}
	}
}
