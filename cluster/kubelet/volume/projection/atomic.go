package projection

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path"
	"strings"
	"time"
)

// Names within a projected volume that are not files of it. Names that begin with .. are ours.
const (
	dataLink    = "..data"
	newDataLink = "..data_tmp"
	// Directories with one version of the contents begin so, for people who list the volume.
	versionLayout = "..2006_01_02_15_04_05."
)

const (
	maxName = 255
	maxPath = 4096
)

// writeAtomic makes files the contents of the volume at root, all at once: they are written to a
// new directory, own is called to set owners, and then ..data, through which all visible names
// lead, is pointed at it. It reports whether anything was written. Leftovers of a write that was
// cut off are removed.
func writeAtomic(root *os.Root, files map[string]file, own func() error) (changed bool, err error) {
	clean := make(map[string]file, len(files))
	for name, f := range files {
		if err := checkName(name); err != nil {
			return false, err
		}
		clean[path.Clean(name)] = f
	}
	current, err := root.Readlink(dataLink)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	if strings.Contains(current, "/") || !strings.HasPrefix(current, "..") {
		current = "" // not our link
	}
	if current == "" || !same(root, current, clean) {
		next, err := writeVersion(root, clean)
		if err == nil {
			if err = own(); err == nil {
				err = point(root, next)
			}
			if err != nil {
				err = errors.Join(err, root.RemoveAll(next))
			}
		}
		if err != nil {
			return false, err
		}
		current, changed = next, true
	}
	return changed, tidy(root, current, clean)
}

// checkName refuses file names that the API would refuse, too.
func checkName(name string) error {
	switch {
	case name == "":
		return fmt.Errorf("invalid path: must not be empty: %q", name)
	case path.IsAbs(name):
		return fmt.Errorf("invalid path: must be relative path: %s", name)
	case len(name) > maxPath:
		return fmt.Errorf("invalid path: must be less than or equal to %d characters", maxPath)
	}
	for i, part := range strings.Split(name, "/") {
		switch {
		case part == "..":
			return fmt.Errorf("invalid path: must not contain '..': %s", name)
		case len(part) > maxName:
			return fmt.Errorf("invalid path: filenames must be less than or equal to %d characters", maxName)
		case i == 0 && strings.HasPrefix(part, ".."):
			return fmt.Errorf("invalid path: must not start with '..': %s", name)
		}
	}
	if path.Clean(name) == "." {
		return fmt.Errorf("invalid path: names the volume itself: %s", name)
	}
	return nil
}

// same says whether the version in dir is exactly files.
func same(root *os.Root, dir string, files map[string]file) bool {
	found := 0
	err := fs.WalkDir(root.FS(), dir, func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		want, ok := files[strings.TrimPrefix(name, dir+"/")]
		info, err := entry.Info()
		if err != nil || !ok || !info.Mode().IsRegular() || info.Size() != int64(len(want.data)) {
			return fs.ErrInvalid
		}
		have, err := root.ReadFile(name)
		if err != nil || !bytes.Equal(have, want.data) {
			return fs.ErrInvalid
		}
		found++
		return nil
	})
	return err == nil && found == len(files)
}

// writeVersion writes files into a new directory and returns its name. Modes are set
// whatever the umask is.
func writeVersion(root *os.Root, files map[string]file) (dir string, err error) {
	dir = time.Now().UTC().Format(versionLayout) + fmt.Sprint(rand.Uint32())
	if err := root.Mkdir(dir, 0o700); err != nil {
		return "", err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, root.RemoveAll(dir))
		}
	}()
	if err := root.Chmod(dir, 0o755); err != nil {
		return "", err
	}
	for name, f := range files {
		name = path.Join(dir, name)
		if err := root.MkdirAll(path.Dir(name), 0o755); err != nil {
			return "", err
		}
		if err := root.WriteFile(name, f.data, 0o600); err != nil {
			return "", err
		}
		if err := root.Chmod(name, os.FileMode(f.mode)&os.ModePerm); err != nil {
			return "", err
		}
		if f.owner != nil {
			if err := root.Lchown(name, int(*f.owner), -1); err != nil {
				return "", err
			}
		}
	}
	return dir, nil
}

// point makes the version in dir the one that is seen.
func point(root *os.Root, dir string) error {
	if err := root.Remove(newDataLink); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := root.Symlink(dir, newDataLink); err != nil {
		return err
	}
	return root.Rename(newDataLink, dataLink)
}

// tidy makes the visible names fit the current version, and removes all other versions.
func tidy(root *os.Root, current string, files map[string]file) error {
	visible := map[string]file{}
	for name, f := range files {
		first, _, _ := strings.Cut(name, "/")
		visible[first] = f
	}
	for name, f := range visible {
		_, err := root.Lstat(name)
		if !errors.Is(err, fs.ErrNotExist) {
			continue // the link, or another volume's mount point: that one hides the file
		}
		if err := root.Symlink(dataLink+"/"+name, name); err != nil {
			return err
		}
		if f.owner != nil {
			if err := root.Lchown(name, int(*f.owner), -1); err != nil {
				return err
			}
		}
	}
	entries, err := fs.ReadDir(root.FS(), ".")
	if err != nil {
		return err
	}
	for _, e := range entries {
		name := e.Name()
		_, wanted := visible[name]
		switch {
		case name == dataLink || name == current:
		case strings.HasPrefix(name, ".."):
			if err := root.RemoveAll(name); err != nil {
				return err
			}
		case !wanted && e.Type() == fs.ModeSymlink:
			if err := root.Remove(name); err != nil {
				return err
			}
		}
	}
	return nil
}
