package snapshot

import (
	"errors"
	"fmt"
	"log/slog"
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

// takeover makes a store's root that of one driver.
type takeover struct {
	root    string
	name    DriverName // that the store is to have
	discard func(dir string) error
	log     *slog.Logger
}

// run makes the store this driver's. What another one has made is dropped, since
// images can be pulled again; but not from under a container, whose root only that
// driver can find again.
func (t *takeover) run() error {
	file := filepath.Join(t.root, driverFile)
	data, err := os.ReadFile(file)
	was := DriverName(strings.TrimSpace(string(data)))
	switch {
	case errors.Is(err, os.ErrNotExist):
		if was, err = t.guess(); err != nil {
			return err
		}
		err = errUnknownDriver
	case err != nil:
		t.log.Warn("the file that says what the snapshot store's driver is cannot be read; taken to be the one that is set", "file", file,
			"err", err, "driver", t.name)
		if err := t.discard(file); err != nil { // it may be a directory
			return err
		}
		was = t.name
	case was != Overlay && was != EROFS && was != Native:
		// A damaged file must not cost containers their roots.
		t.log.Warn("the snapshot store's driver is not known; taken to be the one that is set", "file", file, "content", was, "driver",
			t.name)
		was, err = t.name, errUnknownDriver
	}
	if was != t.name {
		if err := t.drop(was); err != nil {
			return err
		}
	}
	if was == t.name && err == nil {
		return nil
	}
	if err := atomicfile.Write(file, []byte(t.name+"\n"), 0o600); err != nil {
		return fmt.Errorf("snapshot store: %w", err)
	}
	return nil
}

// guess finds out who has made a store without the file: it may be new, older than the file,
// or have lost it.
func (t *takeover) guess() (DriverName, error) {
	native, err := driver.New(Native, t.root, t.discard)
	if err != nil {
		return "", err
	}
	mounts, err := native.Mounts(snapshotsIn(t.root))
	if err != nil {
		return "", err
	}
	if len(mounts) > 0 {
		return Native, nil
	}
	layers, err := os.ReadDir(layer.Top(t.root))
	if err != nil {
		return "", fmt.Errorf("snapshot store: %w", err)
	}
	for _, l := range layers {
		if _, err := os.Lstat(filepath.Join(layer.Top(t.root), l.Name(), driver.ImageFile)); err == nil {
			return EROFS, nil
		}
	}
	return Overlay, nil
}

// drop removes what another driver made, if nothing of it is mounted.
func (t *takeover) drop(was DriverName) error {
	other, err := driver.New(was, t.root, t.discard)
	if err != nil {
		return err
	}
	mounts, err := other.Mounts(snapshotsIn(t.root))
	if err != nil {
		return err
	}
	if len(mounts) > 0 {
		return fmt.Errorf("%w: driver %s cannot take over %s while snapshots of driver %s are mounted; remove all containers first", ErrInvalid,
			t.name, t.root, was)
	}
	dropped := 0
	for _, dir := range []string{layer.Top(t.root), snapshotsIn(t.root)} {
		entries, err := os.ReadDir(dir)
		if err != nil {
			return fmt.Errorf("snapshot store: %w", err)
		}
		for name := range slices.Values(entries) {
			if err := t.discard(filepath.Join(dir, name.Name())); err != nil {
				return err
			}
			dropped++
		}
	}
	if dropped > 0 {
		t.log.Warn("layers and snapshots of another driver dropped; their images have to be pulled again", "driver", t.name, "was", was,
			"dropped", dropped)
	}
	return nil
}

// dropLayerMounts unmounts layers that are not in the store any more.
func (t *takeover) dropLayerMounts(has func(digest.Digest) bool) error {
	entries, err := os.ReadDir(filepath.Join(t.root, driver.MountsDir))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("snapshot store: %w", err)
	}
	e, err := driver.New(EROFS, t.root, t.discard)
	if err != nil {
		return err
	}
	for _, m := range entries {
		d := digest.NewDigestFromEncoded(digest.SHA256, m.Name())
		if t.name == EROFS && has(d) {
			continue
		}
		if err := e.Free(filepath.Join(layer.Top(t.root), m.Name())); err != nil {
			t.log.Warn("leaving mounts that belong to no layer", "err", err)
		}
	}
	return nil
}
