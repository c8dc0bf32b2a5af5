package blobs

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/coracle-project/coracle/image/registry"
	"github.com/coracle-project/coracle/internal/freespace"
)

// Layout is the directory of the store. All names below it are fixed or made from
// validated digests, so package os is enough here.
type Layout struct{ Root string }

// IndexFile, Ingest, LedgerFile and Dir are what is below the root; Dir has the blobs.
func (l Layout) IndexFile() string  { return filepath.Join(l.Root, ocispec.ImageIndexFile) }
func (l Layout) Ingest() string     { return filepath.Join(l.Root, "ingest") }
func (l Layout) LedgerFile() string { return filepath.Join(l.Root, "ledger.db") }
func (l Layout) Dir() string {
	return filepath.Join(l.Root, ocispec.ImageBlobsDir, digest.SHA256.String())
}

// Path is the file of a blob.
func (l Layout) Path(d digest.Digest) string { return filepath.Join(l.Dir(), d.Encoded()) }

// Stage opens a new file in ingest/.
func (l Layout) Stage() (*os.File, error) { return os.CreateTemp(l.Ingest(), "blob-*") }

// Has says whether a blob of that size is there.
func (l Layout) Has(d ocispec.Descriptor) bool {
	st, err := os.Stat(l.Path(d.Digest))
	return err == nil && st.Mode().IsRegular() && st.Size() == d.Size
}

// Exists says whether a blob is there, whatever its size.
func (l Layout) Exists(d digest.Digest) bool {
	_, err := os.Lstat(l.Path(d))
	return err == nil
}

// put stores a small blob whose digest has been checked.
func (l Layout) put(d digest.Digest, data []byte) error {
	f, err := l.Stage()
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
func (l Layout) keep(f *os.File, d digest.Digest) error {
	if err := errors.Join(f.Chmod(0o644), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), l.Path(d))
}

// Read is a reader over the layout's own blobs.
func (l Layout) Read(_ context.Context, d ocispec.Descriptor) ([]byte, error) {
	f, err := os.Open(l.Path(d.Digest))
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

// KeepFree fails if so many bytes more would leave less than keep on the file system.
func (l Layout) KeepFree(n, keep int64) error {
	left, err := freespace.At(l.Root)
	if err != nil {
		return err
	}
	return freespace.Keep(l.Root, left, n, keep)
}

// Holds says whether a small blob is there with these bytes.
func (l Layout) Holds(d digest.Digest, data []byte) bool {
	had, err := os.ReadFile(l.Path(d))
	return err == nil && bytes.Equal(had, data)
}
