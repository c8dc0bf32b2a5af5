package blobs

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/coracle-project/coracle/image/damage"
	"github.com/coracle-project/coracle/internal/atomicfile"
)

// Create makes what is missing of the layout, and removes what a crash left behind. What is
// damaged, or is in the place of something else, is set aside and told.
// The root is closed to other users: images may be private.
func (l Layout) Create() (damaged []error, err error) {
	if err := os.MkdirAll(l.Root, 0o700); err != nil {
		return nil, err
	}
	found := func(d, err error) error {
		if d != nil {
			damaged = append(damaged, d)
		}
		return err
	}
	if err := found(l.makeDir(filepath.Dir(l.Dir()))); err != nil {
		return damaged, err
	}
	if err := found(l.makeDir(l.Dir())); err != nil {
		return damaged, err
	}
	strange, err := l.clearBlobs()
	damaged = append(damaged, strange...)
	if err != nil {
		return damaged, err
	}
	if err := l.removeTemps(); err != nil {
		return damaged, err
	}
	if err := os.RemoveAll(l.Ingest()); damage.OfFile(err) {
		if err := found(l.setAside(l.Ingest(), err)); err != nil {
			return damaged, err
		}
	} else if err != nil {
		return damaged, err
	}
	if err := os.Mkdir(l.Ingest(), 0o700); err != nil {
		return damaged, err
	}
	return damaged, found(l.mark())
}

// makeDir makes sure that there is a directory that can be listed.
func (l Layout) makeDir(path string) (damaged, err error) {
	_, err = os.ReadDir(path)
	if err == nil {
		return nil, nil
	}
	if !damage.OfFile(err) {
		return nil, err
	}
	if _, no := os.Lstat(path); !errors.Is(no, fs.ErrNotExist) {
		if damaged, err = l.setAside(path, err); err != nil {
			return damaged, err
		}
	}
	return damaged, os.Mkdir(path, 0o755)
}

// clearBlobs sets aside what has a blob's name and cannot be one: it would be in the blob's way.
func (l Layout) clearBlobs() (damaged []error, err error) {
	files, err := os.ReadDir(l.Dir())
	if err != nil {
		return nil, err
	}
	for _, f := range files {
		if f.Type().IsRegular() || f.Type() == fs.ModeSymlink || digest.NewDigestFromEncoded(digest.SHA256, f.Name()).Validate() != nil {
			continue
		}
		d, err := l.setAside(filepath.Join(l.Dir(), f.Name()), damage.ErrNoFile)
		if err != nil {
			return damaged, err
		}
		damaged = append(damaged, d)
	}
	return damaged, nil
}

// removeTemps removes what interrupted writes have left.
func (l Layout) removeTemps() error {
	files, err := os.ReadDir(l.Root)
	if err != nil {
		return err
	}
	for _, f := range files {
		if atomicfile.IsTemp(f.Name()) {
			if err := os.RemoveAll(filepath.Join(l.Root, f.Name())); err != nil && !damage.OfFile(err) {
				return err
			}
		}
	}
	return nil
}

// mark makes sure of the file by which other tools know an OCI image layout.
func (l Layout) mark() (damaged, err error) {
	file := filepath.Join(l.Root, ocispec.ImageLayoutFile)
	err = readMark(file)
	switch {
	case err == nil:
		return nil, nil
	case errors.Is(err, fs.ErrNotExist):
	case !damage.OfFile(err):
		return nil, err
	default:
		if damaged, err = l.setAside(file, err); err != nil {
			return damaged, err
		}
	}
	data, err := json.Marshal(ocispec.ImageLayout{Version: ocispec.ImageLayoutVersion})
	if err != nil {
		return damaged, err
	}
	return damaged, atomicfile.WriteSync(file, data, 0o644)
}

func readMark(file string) error {
	data, err := damage.ReadFile(file)
	if err != nil {
		return err
	}
	var layout ocispec.ImageLayout
	if err := json.Unmarshal(data, &layout); err != nil {
		return fmt.Errorf("read %s: %w", file, err)
	}
	if layout.Version != ocispec.ImageLayoutVersion {
		return fmt.Errorf("%s is of version %q, not %s", file, layout.Version, ocispec.ImageLayoutVersion)
	}
	return nil
}

// setAside moves what is damaged out of the way, to a name in the root, and says so.
func (l Layout) setAside(path string, cause error) (damaged, err error) {
	aside := damage.Aside(filepath.Join(l.Root, filepath.Base(path)))
	if err := os.Rename(path, aside); err != nil {
		return cause, fmt.Errorf("set aside what is damaged: %w", err)
	}
	return fmt.Errorf("%s: %w; it is kept as %s", path, cause, aside), nil
}
