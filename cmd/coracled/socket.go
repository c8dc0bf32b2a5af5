package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// listen binds a unix socket with mode 0660 at path. A stale one, which no one
// answers on, is replaced; one that a process listens on, and anything that is not
// a socket, is left alone. The socket never has a wider mode, and a crash at any
// point leaves at most a stale one.
func listen(path string) (net.Listener, error) {
	stale, err := free(path)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, fmt.Errorf("listen %s: %w", path, err)
	}
	if stale {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("listen %s: %w", path, err)
		}
	}
	// bind(2) gives the file the mode of the socket, less the umask.
	narrow := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		var chmod error
		err := c.Control(func(fd uintptr) { chmod = syscall.Fchmod(int(fd), 0o600) })
		return errors.Join(err, chmod)
	}}
	l, err := narrow.Listen(context.Background(), "unix", path)
	if err != nil {
		return nil, fmt.Errorf("listen %s: %w", path, err)
	}
	if err := os.Chmod(path, 0o660); err != nil {
		return nil, errors.Join(fmt.Errorf("listen %s: %w", path, err), l.Close())
	}
	return l, nil // closing it removes the name
}

// free says whether path may be taken, and whether a stale socket is there.
func free(path string) (stale bool, err error) {
	st, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("listen: %w", err)
	}
	if st.Mode().Type() != fs.ModeSocket {
		return false, fmt.Errorf("listen %s: exists and is not a socket; remove it or choose another --address", path)
	}
	c, err := net.DialTimeout("unix", path, time.Second)
	if err == nil {
		_ = c.Close()
		return false, fmt.Errorf("listen %s: another process listens there; stop it or choose another --address", path)
	}
	if !errors.Is(err, syscall.ECONNREFUSED) {
		return false, fmt.Errorf("listen %s: cannot tell whether another process listens there: %w", path, err)
	}
	return true, nil
}
