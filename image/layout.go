package image

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/coracle-project/coracle/image/damage"
	"github.com/coracle-project/coracle/image/manifest"
	"github.com/coracle-project/coracle/image/reference"
	"github.com/coracle-project/coracle/image/registry"
	"github.com/coracle-project/coracle/internal/atomicfile"
	"github.com/coracle-project/coracle/internal/freespace"
)

// annotationPulled is when an index entry was last pulled, RFC 3339. It tells kubelet's
// image garbage collection what is old and steers nothing else.
const annotationPulled = "io.coracle.image.pulled"

// layout is the directory of the store. All names below it are fixed or made from
// validated digests, so package os is enough here.
type layout struct{ root string }

func (l layout) index() string  { return filepath.Join(l.root, ocispec.ImageIndexFile) }
func (l layout) ingest() string { return filepath.Join(l.root, "ingest") }
func (l layout) ledger() string { return filepath.Join(l.root, "ledger.db") }
func (l layout) blobs() string {
	return filepath.Join(l.root, ocispec.ImageBlobsDir, digest.SHA256.String())
}

func (l layout) blob(d digest.Digest) string { return filepath.Join(l.blobs(), d.Encoded()) }

// stage opens a new file in ingest/.
func (l layout) stage() (*os.File, error) { return os.CreateTemp(l.ingest(), "blob-*") }

// has says whether a blob of that size is there.
func (l layout) has(d ocispec.Descriptor) bool {
	st, err := os.Stat(l.blob(d.Digest))
	return err == nil && st.Mode().IsRegular() && st.Size() == d.Size
}

// exists says whether a blob is there, whatever its size.
func (l layout) exists(d digest.Digest) bool {
	_, err := os.Lstat(l.blob(d))
	return err == nil
}

// put stores a small blob whose digest has been checked.
func (l layout) put(d digest.Digest, data []byte) error {
	f, err := l.stage()
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // fails once it is renamed
	defer f.Close()
	if _, err := f.Write(data); err != nil {
		return err
	}
	return l.keep(f, d)
}

// keep closes a staged file and gives it its final name. An open one may have more blocks
// allocated than it needs (xfs).
func (l layout) keep(f *os.File, d digest.Digest) error {
	if err := errors.Join(f.Chmod(0o644), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), l.blob(d))
}

// read is a reader over the layout's own blobs.
func (l layout) read(_ context.Context, d ocispec.Descriptor) ([]byte, error) {
	f, err := os.Open(l.blob(d.Digest))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, registry.MaxDocument+1))
	if err != nil {
		return nil, err
	}
	return data, registry.Verify(data, d.Digest)
}

// loadIndex reads index.json; a missing one is a store without images. What cannot be
// read or understood is damage; what can be understood is returned.
func (l layout) loadIndex() (entries []indexEntry, damaged []error, err error) {
	data, err := damage.ReadFile(l.index())
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil, nil
	case damage.OfFile(err):
		return nil, []error{err}, nil
	case err != nil:
		return nil, nil, err
	}
	var index struct {
		Manifests []json.RawMessage `json:"manifests"`
	}
	if err := json.Unmarshal(data, &index); err != nil {
		damaged = append(damaged, err)
	}
	for i, raw := range index.Manifests {
		var m ocispec.Descriptor
		err := json.Unmarshal(raw, &m)
		var e indexEntry
		if err == nil {
			e, err = parseIndexEntry(m)
		}
		if err != nil {
			damaged = append(damaged, fmt.Errorf("entry %d: %w", i, err))
			continue
		}
		entries = append(entries, e)
	}
	return entries, damaged, nil
}

// keepIndex gives a damaged index.json a second name. It has its own, too, until it is replaced, so
// that the next start knows of the damage if this one does not get so far; but what is no file
// cannot have two.
func (l layout) keepIndex() (aside string, err error) {
	aside = damage.Aside(l.index())
	if os.Link(l.index(), aside) == nil {
		return aside, nil
	}
	return aside, os.Rename(l.index(), aside)
}

// indexEntry is a line of index.json.
type indexEntry struct {
	name    reference.Name
	top     ocispec.Descriptor
	pulled  time.Time
	archive preloaded
}

func parseIndexEntry(m ocispec.Descriptor) (indexEntry, error) {
	if err := manifest.CheckDescriptor(m, registry.MaxManifest); err != nil {
		return indexEntry{}, err
	}
	n, err := reference.Parse(m.Annotations[ocispec.AnnotationRefName])
	if err != nil {
		return indexEntry{}, fmt.Errorf("entry %s: %w", m.Digest, err)
	}
	pulled, err := time.Parse(time.RFC3339Nano, m.Annotations[annotationPulled])
	if err != nil {
		return indexEntry{}, fmt.Errorf("entry %s: %w", m.Digest, err)
	}
	archive := preloadedOf(m)
	m.Annotations = nil
	return indexEntry{name: n, top: m, pulled: pulled, archive: archive}, nil
}

// saveIndex replaces index.json, durably: this is the moment when images exist. Each entry is a
// line, made when it changes.
func (l layout) saveIndex(entries []named) error {
	data := fmt.Appendf(nil, `{"schemaVersion":2,"mediaType":%q,"manifests":[`, ocispec.MediaTypeImageIndex)
	for i, e := range entries {
		line, err := e.line()
		if err != nil {
			return fmt.Errorf("write index entry %s: %w", e.name, err)
		}
		if i == 0 {
			data = slices.Grow(data, len(entries)*(len(line)+16))
		} else {
			data = append(data, ',')
		}
		data = append(append(data, '\n'), line...)
	}
	return atomicfile.WriteSync(l.index(), append(data, "\n]}\n"...), 0o644)
}

// line is the entry's line of index.json.
func (e named) line() ([]byte, error) {
	t := e.pulled.at.Load()
	if e.pulled.of == t {
		return e.pulled.line, nil
	}
	m := e.Top
	m.Annotations = map[string]string{
		ocispec.AnnotationRefName: e.name.String(),
		annotationPulled:          t.UTC().Format(time.RFC3339Nano),
	}
	e.archive.annotate(m.Annotations)
	line, err := json.Marshal(m)
	if err == nil {
		e.pulled.line, e.pulled.of = line, t
	}
	return line, err
}

// keepFree fails if so many bytes more would leave less than keep on the file system.
func (l layout) keepFree(n, keep int64) error {
	left, err := freespace.At(l.root)
	if err != nil {
		return err
	}
	return freespace.Keep(l.root, left, n, keep)
}
