package main

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// listen binds a unix socket with mode 0660 at path. A stale one, which nobody
// answers on, is replaced; one that a process listens on, and anything that is not
// a socket, is left alone. The socket gets its name only when its mode is right.
func listen(path string) (net.Listener, error) {
	if err := free(path); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, fmt.Errorf("listen %s: %w", path, err)
	}
	dir, err := os.MkdirTemp(filepath.Dir(path), ".s") // mode 0700
	if err != nil {
		return nil, fmt.Errorf("listen %s: %w", path, err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	name := filepath.Join(dir, "s")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: name, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("listen %s: %w", path, err)
	}
	l.SetUnlinkOnClose(false) // it would unlink the temporary name
	if err := errors.Join(os.Chmod(name, 0o660), os.Rename(name, path)); err != nil {
		_ = l.Close()
		return nil, fmt.Errorf("listen %s: %w", path, err)
	}
	return &socket{UnixListener: l, path: path}, nil
}

// free says whether path may be taken.
func free(path string) error {
	st, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	if st.Mode().Type() != fs.ModeSocket {
		return fmt.Errorf("listen %s: exists and is not a socket; remove it or choose another --address", path)
	}
	c, err := net.DialTimeout("unix", path, time.Second)
	if err == nil {
		_ = c.Close()
		return fmt.Errorf("listen %s: another process listens there; stop it or choose another --address", path)
	}
	if !errors.Is(err, syscall.ECONNREFUSED) {
		return fmt.Errorf("listen %s: cannot tell whether another process listens there: %w", path, err)
	}
	return nil
}

// socket removes its name when closed.
type socket struct {
	*net.UnixListener
	path string
}

// Close ends listening. The name goes first, and only we have had it: the state
// lock, or at worst the probe in listen, keeps others away.
func (s *socket) Close() error {
	if err := os.Remove(s.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		_ = s.UnixListener.Close()
		return err
	}
	return s.UnixListener.Close()
}
