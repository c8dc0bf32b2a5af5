// Package atomicfile replaces files in one step, so that a reader or a crash sees
// the old content or the new, never a part (rename(2)).
package atomicfile

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/internal/kernfile"
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

// serial tells apart the temporary files of this process.
var serial atomic.Uint64

func replace(path string, data []byte, perm os.FileMode, d durability) error {
	if err := write(path, data, perm, d); err != nil {
		return fmt.Errorf("replace %s: %w", path, err)
	}
	return nil
}

func write(path string, data []byte, perm os.FileMode, d durability) error {
	dir := filepath.Dir(path)
	tmp := ""
	for {
		tmp = filepath.Join(dir, fmt.Sprintf("%s%d-%d", tempPrefix, os.Getpid(), serial.Add(1)))
		err := kernfile.Create(tmp, data, uint32(perm.Perm()))
		if err == nil {
			break
		}
		if !errors.Is(err, os.ErrExist) { // what an earlier process of this pid has left
			return err
		}
	}
	err := error(nil)
	if d == syncAll {
		err = Sync(tmp)
	}
	if err == nil {
		err = unix.Rename(tmp, path)
	}
	if err != nil {
		_ = os.Remove(tmp)
		return err
	}
	if d == syncAll {
		return Sync(dir)
	}
	return nil
}

// Sync writes a file, or the names in a directory, to disk.
func Sync(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	return f.Sync()
}
