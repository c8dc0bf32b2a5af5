package blobs

import (
	"errors"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// disks are the file systems that images are written to: one, or two when the layer
// store is elsewhere.
type disks struct {
	mu   sync.Mutex
	open map[uint64]*os.File // by device
}

// add remembers the file system of a directory.
func (d *disks) add(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		f.Close()
		return fmt.Errorf("stat %s: %w", dir, err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.open[st.Dev] != nil {
		return f.Close()
	}
	if d.open == nil {
		d.open = map[uint64]*os.File{}
	}
	d.open[st.Dev] = f
	return nil
}

// sync writes back everything: one syncfs per file system costs far less than an
// fsync of each of a layer's files, and reports write errors since kernel 5.8.
func (d *disks) sync() error {
	d.mu.Lock()
	files := make([]*os.File, 0, len(d.open))
	for _, f := range d.open {
		files = append(files, f)
	}
	d.mu.Unlock()
	for _, f := range files {
		if err := unix.Syncfs(int(f.Fd())); err != nil {
			return fmt.Errorf("syncfs of %s: %w", f.Name(), err)
		}
	}
	return nil
}

func (d *disks) close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	var errs []error
	for dev, f := range d.open {
		errs = append(errs, f.Close())
		delete(d.open, dev)
	}
	return errors.Join(errs...)
}
