//go:build cgo

package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/integration/bench/page"
)

// crowd is page.Mounts more mounts below a directory, which is made with them.
type crowd struct{ dir string }

// mount makes them, or none.
func (c *crowd) mount() error {
	if err := os.Mkdir(c.dir, 0o755); err != nil {
		return err
	}
	if err := unix.Mount("many", c.dir, "tmpfs", 0, ""); err != nil {
		return errors.Join(err, os.Remove(c.dir))
	}
	if err := c.fill(); err != nil {
		return errors.Join(err, c.unmount())
	}
	return nil
}

func (c *crowd) fill() error {
	// Else each would appear in the others.
	if err := unix.Mount("", c.dir, "", unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	source := filepath.Join(c.dir, "source")
	if err := os.Mkdir(source, 0o755); err != nil {
		return err
	}
	for i := range page.Mounts {
		d := filepath.Join(c.dir, fmt.Sprint(i))
		if err := os.Mkdir(d, 0o755); err != nil {
			return err
		}
		if err := unix.Mount(source, d, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("make mount %d: %w", i, err)
		}
	}
	return nil
}

func (c *crowd) unmount() error {
	if err := unix.Unmount(c.dir, unix.MNT_DETACH); err != nil {
		return fmt.Errorf("unmount %s: %w", c.dir, err)
	}
	return os.Remove(c.dir)
}
