// Package sock makes and dials unix sockets by directory and name, so that the
// directory's path may be longer than a socket address (107 bytes).
package sock

import (
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// Shim is the name of a shim's socket in its state directory.
const Shim = "shim.sock"

// Listen makes a socket in dir, mode 0600, in place of one that is there. network is
// "unix" or "unixpacket". Closing the listener leaves the socket file. Another process may replace
// the file at any time (see [Named]).
//
// The file's mode changes when it listens (IN_ATTRIB): who waits for it with inotify could not
// connect before.
func Listen(dir, name, network string) (*net.UnixListener, error) {
	var l *net.UnixListener
	err := at(dir, name, func(path string) (err error) {
		for range attempts {
			if err := remove(path); err != nil {
				return err
			}
			l, err = net.ListenUnix(network, &net.UnixAddr{Name: path, Net: network})
			if !errors.Is(err, unix.EADDRINUSE) {
				break
			}
		}
		if err != nil {
			return err
		}
		l.SetUnlinkOnClose(false)
		if err := os.Chmod(path, 0o600); err != nil && !errors.Is(err, os.ErrNotExist) {
			return errors.Join(err, l.Close())
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("listen on %s in %s: %w", name, dir, err)
	}
	return l, nil
}

// attempts is how often Listen tries to be faster than another process that makes the same file.
const attempts = 100

// remove removes the file at path. It only renames a directory that is not empty.
func remove(path string) error {
	err := os.Remove(path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil
	case errors.Is(err, unix.ENOTEMPTY):
		return os.Rename(path, path+".moved-"+rand.Text())
	}
	return err
}

// Named reports whether name in dir is the socket that a listener is bound to. If the file was
// removed or replaced, the listener gets no connections. It needs CAP_NET_ADMIN.
func Named(listener *os.File, dir, name string) (bool, error) {
	rc, err := listener.SyscallConn()
	if err != nil {
		return false, err
	}
	var bound, now unix.Stat_t
	if cerr := rc.Control(func(fd uintptr) {
		// The name that it was bound by is a path below /proc/self. Only the kernel knows the file.
		var file int
		if file, err = unix.IoctlRetInt(int(fd), siocUnixFile); err == nil {
			err = unix.Fstat(file, &bound)
			unix.Close(file)
		}
	}); cerr != nil {
		err = cerr
	}
	if err != nil {
		return false, fmt.Errorf("find the file of socket %s: %w", name, err)
	}
	err = unix.Lstat(filepath.Join(dir, name), &now)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("find socket %s in %s: %w", name, dir, err)
	}
	return bound.Dev == now.Dev && bound.Ino == now.Ino, nil
}

// siocUnixFile opens the file that a unix socket is bound to (O_PATH); see linux/un.h.
const siocUnixFile = 0x89e0

// Dial connects to a socket in dir.
func Dial(dir, name, network string) (*net.UnixConn, error) {
	var c *net.UnixConn
	err := at(dir, name, func(path string) (err error) {
		c, err = net.DialUnix(network, nil, &net.UnixAddr{Name: path, Net: network})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("dial %s in %s: %w", name, dir, err)
	}
	return c, nil
}

// at calls do with a short path of name in dir, valid meanwhile.
func at(dir, name string, do func(path string) error) error {
	d, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: dir, Err: err}
	}
	defer unix.Close(d)
	return do("/proc/self/fd/" + strconv.Itoa(d) + "/" + name)
}
