// Package sock makes and dials unix sockets by directory and name, so that the
// directory's path may be longer than a socket address (107 bytes).
package sock

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// Shim is the name of a shim's socket in its state directory.
const Shim = "shim.sock"

// Listen makes a socket in dir, mode 0600, in place of one that is there. network is
// "unix" or "unixpacket". Closing the listener leaves the socket file.
func Listen(dir, name, network string) (*net.UnixListener, error) {
	var l *net.UnixListener
	err := at(dir, name, func(path string) (err error) {
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		if l, err = net.ListenUnix(network, &net.UnixAddr{Name: path, Net: network}); err != nil {
			return err
		}
		l.SetUnlinkOnClose(false)
		if err := os.Chmod(path, 0o600); err != nil {
			return errors.Join(err, l.Close())
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("listen on %s in %s: %w", name, dir, err)
	}
	return l, nil
}

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
