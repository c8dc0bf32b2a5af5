// Package atomicfile replaces files in one step, so that a reader or a crash sees
// the old content or the new, never a part (rename(2)).
package atomicfile

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// tempPrefix marks files that a crash may have left behind; readers of a directory
// of records skip them with IsTemp.
const tempPrefix = ".atomic-"

// Write replaces path with data and mode perm. It does not sync: for state that a
// reboot erases anyway. The temporary file is made in path's own directory.
func Write(path string, data []byte, perm os.FileMode) error {
	return replace(path, data, perm, noSync)
}

// WriteSync is Write for state that must outlive a power cut: when it returns, the
// new content is on disk (fsync of the file, then of its directory).
func WriteSync(path string, data []byte, perm os.FileMode) error {
	return replace(path, data, perm, syncAll)
}

// IsTemp reports whether name (a base name) is a leftover of an interrupted Write.
func IsTemp(name string) bool { return strings.HasPrefix(name, tempPrefix) }

type durability int

const (
	noSync durability = iota
	syncAll
)

func replace(path string, data []byte, perm os.FileMode, d durability) (err error) {
	dir := filepath.Dir(path)
	f, err := os.CreateTemp(dir, tempPrefix+"*")
	if err != nil {
		return fmt.Errorf("replace %s: %w", path, err)
	}
	defer func() {
		if err != nil {
			f.Close() // a second close after a failed one does no harm
			os.Remove(f.Name())
			err = fmt.Errorf("replace %s: %w", path, err)
		}
	}()
	if err := f.Chmod(perm); err != nil {
		return err
	}
	if _, err := f.Write(data); err != nil {
		return err
	}
	if d == syncAll {
		if err := f.Sync(); err != nil {
			return err
		}
	}
	// Close before rename: a delayed write error must not be renamed into place.
	if err := f.Close(); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return err
	}
	if d == syncAll {
		return syncDir(dir)
	}
	return nil
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}
