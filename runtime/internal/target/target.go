// Package target makes what a mount goes to where an image has a symbolic link to something that
// is not there: /etc/resolv.conf often leads to a directory that only a running system has. The
// image made the links, so they are followed by hand, one name at a time, and lead nowhere but
// into the container's root.
package target

import (
	"fmt"
	"strings"

	"golang.org/x/sys/unix"
)

// Owner is who what is made belongs to.
type Owner struct{ UID, GID int }

// Make makes a directory or an empty file at a path below a root directory, which may be O_PATH,
// and directories on the way. What is there already stays. Errors name the path.
func Make(root int, path string, dir bool, owner Owner) error {
	w := &walk{at: []int{root}, owner: owner}
	defer w.close()
	if err := w.follow(path, dir); err != nil {
		return fmt.Errorf("make %s: %w", path, err)
	}
	return nil
}

// walk is the way from the root to where it has come.
type walk struct {
	at    []int // descriptors of directories; the first is the caller's
	owner Owner
}

func (w *walk) close() {
	w.up(len(w.at) - 1)
}

// up goes back some steps, but not above the root.
func (w *walk) up(steps int) {
	for ; steps > 0 && len(w.at) > 1; steps-- {
		_ = unix.Close(w.at[len(w.at)-1])
		w.at = w.at[:len(w.at)-1]
	}
}

func (w *walk) follow(path string, dir bool) error {
	const mostLinks = 40 // as the kernel has it
	links := 0
	for rest := names(path); len(rest) > 0; {
		name := rest[0]
		rest = rest[1:]
		if name == ".." {
			w.up(1)
			continue
		}
		fd, kind, err := w.step(name, dir || len(rest) > 0)
		if err != nil {
			return err
		}
		switch {
		case kind == unix.S_IFDIR:
			w.at = append(w.at, fd)
		case kind == unix.S_IFLNK:
			to, err := readlink(fd)
			_ = unix.Close(fd)
			if err != nil {
				return err
			}
			if links++; links > mostLinks {
				return unix.ELOOP
			}
			if strings.HasPrefix(to, "/") {
				w.close()
			}
			rest = append(names(to), rest...)
		default:
			_ = unix.Close(fd)
			if len(rest) > 0 {
				return unix.ENOTDIR
			}
		}
	}
	return nil
}

// step opens a name in the directory that the walk has come to, and makes it if it is missing.
func (w *walk) step(name string, dir bool) (fd int, kind uint32, err error) {
	here := w.at[len(w.at)-1]
	fd, err = unix.Openat(here, name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err == unix.ENOENT {
		if err = w.create(here, name, dir); err != nil && err != unix.EEXIST {
			return -1, 0, err
		}
		fd, err = unix.Openat(here, name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	}
	if err != nil {
		return -1, 0, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		_ = unix.Close(fd)
		return -1, 0, err
	}
	return fd, st.Mode & unix.S_IFMT, nil
}

func (w *walk) create(here int, name string, dir bool) error {
	mode := uint32(0o644)
	err := error(nil)
	if dir {
		mode = 0o755
		err = unix.Mkdirat(here, name, mode)
	} else {
		err = unix.Mknodat(here, name, unix.S_IFREG|mode, 0)
	}
	if err != nil {
		return err
	}
	return unix.Fchownat(here, name, w.owner.UID, w.owner.GID, unix.AT_SYMLINK_NOFOLLOW)
}

func readlink(fd int) (string, error) {
	buf := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(fd, "", buf)
	if err != nil {
		return "", err
	}
	return string(buf[:n]), nil
}

// names are a path's components.
func names(path string) []string {
	var out []string
	for _, n := range strings.Split(path, "/") {
		if n != "" && n != "." {
			out = append(out, n)
		}
	}
	return out
}
