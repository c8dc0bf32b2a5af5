package snapshot

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/opencontainers/go-digest"

	"github.com/coracle-project/coracle/internal/atomicfile"

	"github.com/coracle-project/coracle/snapshot/driver"

	"github.com/coracle-project/coracle/snapshot/layer"
)

var errUnknownDriver = errors.New("unknown driver")

// driverFile names the driver that made what is in the store.
const driverFile = "driver"

// takeOver makes the store this driver's. What another one has made is dropped, since
// images can be pulled again; but not from under a container, whose root only that
// driver can find again.
func (s *Store) takeOver() error {
	file := filepath.Join(s.root, driverFile)
	data, err := os.ReadFile(file)
	was := DriverName(strings.TrimSpace(string(data)))
	switch {
	case errors.Is(err, os.ErrNotExist):
		if was, err = s.guessDriver(); err != nil {
			return err
		}
		err = errUnknownDriver
	case err != nil:
		s.log.Warn("the file that says what the snapshot store's driver is cannot be read; taken to be the one that is set", "file", file,
			"error", err, "driver", s.driverName)
		if err := s.trash.Discard(file); err != nil { // it may be a directory
			return err
		}
		was = s.driverName
	case was != Overlay && was != EROFS && was != Native:
		// A damaged file must not cost containers their roots.
		s.log.Warn("the snapshot store's driver is not known; taken to be the one that is set", "file", file, "content", was, "driver",
			s.driverName)
		was, err = s.driverName, errUnknownDriver
	}
	if was != s.driverName {
		if err := s.dropOther(was); err != nil {
			return err
		}
	}
	if was == s.driverName && err == nil {
		return nil
	}
	if err := atomicfile.Write(file, []byte(s.driverName+"\n"), 0o600); err != nil {
		return fmt.Errorf("snapshot store: %w", err)
	}
	return nil
}

// guessDriver finds out who has made a store without the file: it may be new, older than the file,
// or have lost it.
func (s *Store) guessDriver() (DriverName, error) {
	native, err := driver.New(Native, s.root, s.trash.Discard)
	if err != nil {
		return "", err
	}
	mounts, err := native.Mounts(s.snapshotsDir())
	if err != nil {
		return "", err
	}
	if len(mounts) > 0 {
		return Native, nil
	}
	layers, err := os.ReadDir(layer.Top(s.root))
	if err != nil {
		return "", fmt.Errorf("snapshot store: %w", err)
	}
	for _, l := range layers {
		if _, err := os.Lstat(filepath.Join(layer.Top(s.root), l.Name(), driver.ImageFile)); err == nil {
			return EROFS, nil
		}
	}
	return Overlay, nil
}

func (s *Store) dropOther(was DriverName) error {
	other, err := driver.New(was, s.root, s.trash.Discard)
	if err != nil {
		return err
	}
	mounts, err := other.Mounts(s.snapshotsDir())
	if err != nil {
		return err
	}
	if len(mounts) > 0 {
		return fmt.Errorf("%w: driver %s cannot take over %s while snapshots of driver %s are mounted; remove all containers first", ErrInvalid,
			s.driverName, s.root, was)
	}
	dropped := 0
	for _, dir := range []string{layer.Top(s.root), s.snapshotsDir()} {
		entries, err := os.ReadDir(dir)
		if err != nil {
			return fmt.Errorf("snapshot store: %w", err)
		}
		for name := range slices.Values(entries) {
			if err := s.trash.Discard(filepath.Join(dir, name.Name())); err != nil {
				return err
			}
			dropped++
		}
	}
	if dropped > 0 {
		s.log.Warn("layers and snapshots of another driver dropped; their images have to be pulled again", "driver", s.driverName, "was", was,
			"dropped", dropped)
	}
	return nil
}

// dropLayerMounts unmounts layers that are not in the store any more.
func (s *Store) dropLayerMounts() error {
	entries, err := os.ReadDir(filepath.Join(s.root, driver.MountsDir))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("snapshot store: %w", err)
	}
	e, err := driver.New(EROFS, s.root, s.trash.Discard)
	if err != nil {
		return err
	}
	for _, m := range entries {
		d := digest.NewDigestFromEncoded(digest.SHA256, m.Name())
		if s.driverName == EROFS && s.HasLayer(d) {
			continue
		}
		if err := e.Free(filepath.Join(layer.Top(s.root), m.Name())); err != nil {
			s.log.Warn("what is mounted of no layer of the store is left", "error", err)
		}
	}
	return nil
}
