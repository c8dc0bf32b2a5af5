package catalog

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/image/manifest"
)

// Archive is the archive that an image was loaded from to be on this machine without a registry,
// as it was then. No collection removes the image while that file is unchanged.
type Archive struct {
	file    string
	changed int64 // nanoseconds since 1970
}

// annotationPreloaded is the archive of an index entry: the time of its last change, and its path.
const annotationPreloaded = "io.coracle.image.preloaded"

// ArchiveOf is an archive as it is now; none if file is empty.
func ArchiveOf(file string) (Archive, error) {
	if file == "" {
		return Archive{}, nil
	}
	if !filepath.IsAbs(file) {
		return Archive{}, fmt.Errorf("%w: archive %q is no absolute path", manifest.ErrInvalid, file)
	}
	st, err := os.Stat(file)
	if err != nil {
		return Archive{}, err
	}
	return Archive{file, st.ModTime().UnixNano()}, nil
}

// pins says whether the archive is still what it was. It counts as that while it cannot be looked
// at, as on a file system that fails: without a registry, an image that is collected does not come
// back.
func (p Archive) pins() bool {
	if p.file == "" {
		return false
	}
	now, err := ArchiveOf(p.file)
	if err != nil {
		return !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ENOTDIR) // a directory above it may be a file now
	}
	return now == p
}

// annotate adds the archive to an entry of the index.
func (p Archive) annotate(to map[string]string) {
	if p.file != "" {
		to[annotationPreloaded] = strconv.FormatInt(p.changed, 10) + " " + p.file
	}
}

// preloadedOf reads what annotate has written. What it does not understand pins nothing.
func preloadedOf(m ocispec.Descriptor) Archive {
	changed, file, _ := strings.Cut(m.Annotations[annotationPreloaded], " ")
	at, err := strconv.ParseInt(changed, 10, 64)
	if err != nil || !filepath.IsAbs(file) {
		return Archive{}
	}
	return Archive{file, at}
}

// isPreloaded says whether an archive pins the image.
func (k *Known) isPreloaded() bool {
	for i := range k.entries {
		if k.entries[i].Archive.pins() {
			return true
		}
	}
	return false
}

// Pinned are references of images that no collection removes: full names with a tag
// or digest, or the beginning of some with * after it.
type Pinned []string

func (p Pinned) has(name string) bool {
	return slices.ContainsFunc(p, func(pattern string) bool {
		if prefix, ok := strings.CutSuffix(pattern, "*"); ok {
			return strings.HasPrefix(name, prefix)
		}
		return pattern == name
	})
}
