// Package reserve keeps space on the file system of the state directory, with which pods can be
// stopped and removed when it is full.
package reserve

import (
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/pod/errdefs"
)

// New makes a Reserve for the file system of a directory. It does no I/O.
func New(dir string, log *slog.Logger) *Reserve { return &Reserve{dir: dir, log: log} }

// Reserve is the space on the state directory's file system. Other programs may fill it: /run is
// shared by all services of a node. Pods must then still be stopped and removed, or space would
// never become free. So there is a reserve. It is deleted when an intent to stop or remove does
// not fit, and rebuilt when there is space again. The reserve consists of files because inodes may
// run out too. Any program can use its space; the records of the network and of the shim need some
// of it to take a pod down.
type Reserve struct {
	dir string // the state directory
	log *slog.Logger

	mu      sync.Mutex
	held    bool      // some of the reserve exists
	whole   bool      // all of the reserve exists
	checked time.Time // last check of the file system
	writes  int       // of records, since the last check
	scarce  bool      // nearly full at the last check
}

const (
	// The reserve has space for some hundred records of a page or two each.
	reserveFiles = 16
	reserveBytes = 1 << 20
	// reserveSpare is how much must be free in addition to the reserve before it is built.
	reserveSpare = 1 << 20
	// After a write, the file system is checked if checkWrites writes or checkAge have passed.
	checkWrites = 64
	checkAge    = 10 * time.Second
	// The file system is nearly full from scarceAt percent, and no longer below plentyAt.
	scarceAt, plentyAt = 90, 85
)

// Usage is the usage of the state directory's file system.
type Usage struct {
	Path               string
	Bytes, BytesFree   uint64
	Inodes, InodesFree uint64 // Inodes is 0 if their number is not fixed
}

// Percent is the usage of bytes or inodes, whichever is higher.
func (u Usage) Percent() int {
	percent := func(free, total uint64) int {
		if total == 0 {
			return 0
		}
		return int((total - min(free, total)) * 100 / total)
	}
	return max(percent(u.BytesFree, u.Bytes), percent(u.InodesFree, u.Inodes))
}

// UsageOf returns the usage of the file system that path is on.
func UsageOf(path string) (Usage, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		return Usage{}, &fs.PathError{Op: "statfs", Path: path, Err: err}
	}
	size := uint64(st.Bsize)
	return Usage{
		Path: path, Bytes: st.Blocks * size, BytesFree: st.Bavail * size, Inodes: st.Files, InodesFree: st.Ffree,
	}, nil
}

// NoSpace reports whether an error means a full file system: out of bytes or inodes (both ENOSPC),
// or over quota.
func NoSpace(err error) bool { return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) }

func (r *Reserve) path() string { return filepath.Join(r.dir, "reserve") }

// Wrote is called after each written record.
func (r *Reserve) Wrote() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.writes++; r.writes >= checkWrites || time.Since(r.checked) >= checkAge {
		r.checkLocked()
	}
}

// Check checks the file system now. It also checks for a reserve of an earlier daemon, which on a
// full file system could not be rebuilt. That reserve may be incomplete.
func (r *Reserve) Check() {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, err := os.Lstat(r.path())
	r.held, r.whole = err == nil, false
	r.checkLocked()
}

// checkLocked checks the file system, and builds or completes the reserve if it fits.
func (r *Reserve) checkLocked() {
	u, err := r.lookLocked()
	if err != nil || r.whole || u.BytesFree < reserveBytes+reserveSpare || u.Inodes > 0 && u.InodesFree < 4*reserveFiles {
		return
	}
	if err := makeReserve(r.path()); err != nil {
		r.log.Warn("cannot build reserve for stopping pods on a full state directory", "err", err)
		r.held = false
		return
	}
	r.held, r.whole = true, true
}

// lookLocked warns once when the file system becomes nearly full.
func (r *Reserve) lookLocked() (Usage, error) {
	r.writes, r.checked = 0, time.Now()
	u, err := UsageOf(r.dir)
	if err != nil {
		r.log.Warn("cannot check state directory", "err", err)
		return u, err
	}
	switch percent := u.Percent(); {
	case !r.scarce && percent >= scarceAt:
		r.scarce = true
		r.log.Warn("state directory is nearly full, "+remedy, "path", r.dir, "percent", percent,
			"bytes free", u.BytesFree, "inodes free", u.InodesFree)
	case r.scarce && percent < plentyAt:
		r.scarce = false
		r.log.Info("state directory has space again", "path", r.dir, "percent", percent)
	}
	return u, nil
}

// NotWritten logs that the record of an object was not written for want of space.
func (r *Reserve) NotWritten(id string, err error) {
	r.log.Error("record not written: state directory is full; continuing", "id", id, "err", err)
}

// makeReserve allocates the reserve. It completes a partial one.
func makeReserve(dir string) (err error) {
	defer func() {
		if err != nil {
			_ = os.RemoveAll(dir)
		}
	}()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	for i := range reserveFiles {
		if err := allocate(filepath.Join(dir, strconv.Itoa(i)), reserveBytes/reserveFiles); err != nil {
			return err
		}
	}
	return nil
}

func allocate(path string, size int64) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	for err = unix.EINTR; errors.Is(err, unix.EINTR); { // tmpfs gives up at any signal, also at the Go runtime's own
		err = unix.Fallocate(int(f.Fd()), 0, 0, size)
	}
	if err != nil {
		err = &fs.PathError{Op: "allocate", Path: path, Err: err}
	}
	return errors.Join(err, f.Close())
}

// Free deletes the reserve, and reports whether that made space.
func (r *Reserve) Free() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, _ = r.lookLocked() // logged; the next write must not rebuild the reserve at once
	if !r.held {
		return false
	}
	r.held, r.whole = false, false
	if err := os.RemoveAll(r.path()); err != nil {
		r.log.Error("cannot delete reserve", "err", err)
		return false
	}
	r.log.Warn("state directory is full; using its reserve to stop and remove pods; "+remedy, "path", r.dir)
	return true
}

const remedy = "remove pods, or make its file system larger (a tmpfs: mount -o remount,size=SIZE,nr_inodes=NUMBER)"

// Explain adds the remedy to an error caused by a full file system.
func (r *Reserve) Explain(err error) error {
	if err == nil || !NoSpace(err) {
		return err
	}
	r.mu.Lock()
	u, uerr := r.lookLocked()
	r.mu.Unlock()
	if uerr == nil && (u.BytesFree < reserveSpare || u.Inodes > 0 && u.InodesFree < 16) {
		return errdefs.Errorf(errdefs.ErrExhausted,
			"the file system of the state directory %s is full (%d of %d bytes and %d of %d inodes free): %s: %w",
			r.dir, u.BytesFree, u.Bytes, u.InodesFree, u.Inodes, remedy, err)
	}
	var at *fs.PathError
	if errors.As(err, &at) {
		return errdefs.Errorf(errdefs.ErrExhausted, "the file system of %s is full; free space on it (coracle image prune) or make it larger: %w",
			at.Path, err)
	}
	return errdefs.Errorf(errdefs.ErrExhausted, "a file system is full: %w", err)
}
