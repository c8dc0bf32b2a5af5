package layer

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/internal/atomicfile"
	"github.com/coracle-project/coracle/snapshot/diff"
	"github.com/coracle-project/coracle/snapshot/driver"
	"github.com/coracle-project/coracle/snapshot/space"
)

// A lazy layer is one that is not unpacked yet, and that someone else shows as a mount meanwhile.
// Roots can be made of it; else it does not count as whole (HasLayer). When it is committed
// (Writer.Commit), new roots are made of the unpacked layer; those that were made of the mount
// hold it when EndLazy takes it away, which comes after the process that shows it knows of the
// unpacked files. The directory with the mount is of no use after a reboot or without that process.
//
//	lazy/<hex of the diff id>/fs         where it is mounted
//	lazy/<hex>/blob                      what has come of the layer's archive
//	lazy/<hex>/lazy.json                 the record, once it is mounted
//
// Only the roots that are made of its mount wait for the process that shows a layer: that process
// may be stopped, and then each access to a file waits until it goes on. A mount that is removed
// while it is in use disappears with its last user.

const lazyFile = "lazy.json"

// lazyRecord is the content of lazy.json.
type lazyRecord struct {
	Version int           `json:"version"` // 1
	DiffID  digest.Digest `json:"diffID"`
	Blob    digest.Digest `json:"blob"`
	TOC     digest.Digest `json:"toc"` // of the table of contents that the files are shown by
}

func (s *Store) lazyTop() string                 { return filepath.Join(s.root, "lazy") }
func (s *Store) lazyDir(d digest.Digest) string  { return filepath.Join(s.lazyTop(), d.Encoded()) }
func (s *Store) lazyBlob(d digest.Digest) string { return filepath.Join(s.lazyDir(d), "blob") }

// BeginLazy makes the directory of a lazy layer, with an empty one to mount it on (fs). The caller
// holds a layer against others who begin it, and ends with CommitLazy or AbortLazy. ErrExists if
// the layer is there, ErrInUse if the one before has not gone yet, diff.ErrUnsupported if the
// driver has no use for mounts.
func (s *Store) BeginLazy(diffID digest.Digest) (dir string, err error) {
	if err := Check(diffID); err != nil {
		return "", err
	}
	if s.driverName != driver.Overlay {
		return "", fmt.Errorf("%w: lazy layers need the snapshot driver %s, not %s", diff.ErrUnsupported, driver.Overlay, s.driverName)
	}
	if s.HasAny(diffID) {
		return "", fmt.Errorf("lazy layer %s: %w", diffID, ErrExists)
	}
	if s.isReached(diffID) {
		return "", fmt.Errorf("lazy layer %s: %w: the mount before this one is still reached for", diffID, ErrInUse)
	}
	if err := s.dropLazy(diffID); err != nil { // of a daemon that was killed
		return "", err
	}
	if err := os.MkdirAll(driver.FilesIn(s.lazyDir(diffID)), 0o700); err != nil {
		return "", fmt.Errorf("lazy layer %s: %w", diffID, err)
	}
	return s.lazyDir(diffID), nil
}

// CommitLazy takes a layer into use that is mounted now. blob is its archive, and toc the digest of
// the table of contents that it is shown by.
func (s *Store) CommitLazy(diffID, blob, toc digest.Digest) error {
	data, err := json.Marshal(lazyRecord{Version: 1, DiffID: diffID, Blob: blob, TOC: toc})
	if err == nil {
		err = atomicfile.Write(filepath.Join(s.lazyDir(diffID), lazyFile), data, 0o600)
	}
	if err != nil {
		return fmt.Errorf("lazy layer %s: %w", diffID, err)
	}
	s.renames.Lock()
	defer s.renames.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.layers[diffID] != nil {
		return fmt.Errorf("lazy layer %s: %w", diffID, ErrExists)
	}
	s.layers[diffID] = &entry{lazy: blob, toc: toc}
	return nil
}

// AbortLazy undoes BeginLazy.
func (s *Store) AbortLazy(diffID digest.Digest) error { return s.dropLazy(diffID) }

// EndLazy takes away the mount of a layer that is unpacked now, or gone; it does not wait for roots
// that are made of it.
func (s *Store) EndLazy(diffID digest.Digest) error {
	if blob, _ := s.LazySource(diffID); blob != "" {
		return fmt.Errorf("end lazy layer %s: it is not unpacked", diffID)
	}
	return s.dropLazy(diffID)
}

// LazySource says which blob a lazy layer is shown from, and by which table of contents; "" if the
// layer is unpacked, or not there.
func (s *Store) LazySource(diffID digest.Digest) (blob, toc digest.Digest) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if l := s.layers[diffID]; l != nil {
		return l.lazy, l.toc
	}
	return "", ""
}

// OpenLazyBlob opens what has come of a lazy layer's archive.
func (s *Store) OpenLazyBlob(diffID digest.Digest) (*os.File, error) {
	if err := Check(diffID); err != nil {
		return nil, err
	}
	f, err := os.Open(s.lazyBlob(diffID))
	if err != nil {
		return nil, fmt.Errorf("blob of lazy layer %s: %w", diffID, err)
	}
	return f, nil
}

// LayerDir is the directory with an unpacked layer's files. It stays while a snapshot has the
// layer.
func (s *Store) LayerDir(diffID digest.Digest) string { return driver.FilesIn(s.layerDir(diffID)) }

// dropLazy takes the mount of a layer away that is no lazy one any more, and what belongs to it; if
// it is being reached for, then as soon as it is not.
func (s *Store) dropLazy(d digest.Digest) error {
	s.mu.Lock()
	r := s.reached[d]
	if r != nil {
		r.drop = true
	}
	s.mu.Unlock()
	if r != nil {
		return nil
	}
	return s.unmountLazy(d)
}

// unmountLazy is dropLazy when no one reaches for the mount. Roots that were made of it hold it.
func (s *Store) unmountLazy(d digest.Digest) error {
	at := driver.FilesIn(s.lazyDir(d))
	for {
		err := unix.Unmount(at, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
		if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) {
			break // nothing is mounted there
		}
		if err != nil {
			return fmt.Errorf("unmount lazy layer %s: %w", at, err)
		}
	}
	return s.trash.Discard(s.lazyDir(d))
}

// DropLazy takes all lazy layers out of use: the process that shows them is about to end.
func (s *Store) DropLazy() error {
	s.renames.Lock()
	defer s.renames.Unlock()
	var all []digest.Digest
	s.mu.Lock()
	for d, l := range s.layers {
		if l.lazy != "" {
			delete(s.layers, d)
			all = append(all, d)
		}
	}
	s.mu.Unlock()
	var errs []error
	for _, d := range all {
		errs = append(errs, s.dropLazy(d))
	}
	return errors.Join(errs...)
}

// lazyUsage is what has come of a layer.
func (s *Store) lazyUsage(d digest.Digest) (space.Usage, error) {
	var st unix.Stat_t
	if err := unix.Lstat(s.lazyBlob(d), &st); err != nil {
		return space.Usage{}, fmt.Errorf("layer %s: %w", d, ErrMissing) // unpacked meanwhile
	}
	return space.Usage{Bytes: st.Blocks * 512, Inodes: 1}, nil
}

// loadLazy takes the lazy layers over that served says are shown still; the rest are no more.
func (s *Store) loadLazy(served func(digest.Digest) bool) error {
	entries, err := os.ReadDir(s.lazyTop())
	if err != nil {
		return fmt.Errorf("snapshot store: %w", err)
	}
	for _, e := range entries {
		d := digest.NewDigestFromEncoded(digest.SHA256, e.Name())
		r, err := s.readLazy(d)
		if err == nil && s.driverName == driver.Overlay && served != nil && served(d) {
			if !s.HasLayer(d) { // else EndLazy comes
				s.layers[d] = &entry{lazy: r.Blob, toc: r.TOC}
			}
			continue
		}
		if !s.HasLayer(d) {
			s.log.Warn("dropping a lazy layer that is not shown any more: what has it must be pulled again", "layer", e.Name(), "err", err)
		}
		if err := s.dropLazy(d); err != nil {
			s.log.Warn("it is left", "layer", e.Name(), "err", err)
		}
	}
	return nil
}

func (s *Store) readLazy(d digest.Digest) (r lazyRecord, err error) {
	if err := Check(d); err != nil {
		return r, err
	}
	data, err := os.ReadFile(filepath.Join(s.lazyDir(d), lazyFile))
	if err != nil {
		return r, err
	}
	if err := json.Unmarshal(data, &r); err != nil {
		return r, fmt.Errorf("%s: %w", lazyFile, err)
	}
	if r.Version != 1 || r.DiffID != d {
		return r, fmt.Errorf("%s: version %d of %s", lazyFile, r.Version, r.DiffID)
	}
	// A record without a table of contents does not say whose files are shown.
	if err := r.TOC.Validate(); err != nil {
		return r, fmt.Errorf("%s: table of contents %q: %w", lazyFile, r.TOC, err)
	}
	return r, Check(r.Blob)
}
