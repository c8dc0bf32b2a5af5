package pack

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"os"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/coracle-project/coracle/image/archive"
	"github.com/coracle-project/coracle/image/blobs"
	"github.com/coracle-project/coracle/image/registry"
	"github.com/coracle-project/coracle/image/unpack"
	"github.com/coracle-project/coracle/internal/remover"
)

// Scratch is where files are made that are on their way into the store, or out of it.
type Scratch struct {
	Blobs   *blobs.Store
	Limits  unpack.Limits
	Remover *remover.Remover
}

// Dir makes a directory, which remove deletes in the background.
func (s *Scratch) Dir() (dir string, remove func(), err error) {
	dir, err = os.MkdirTemp(s.Blobs.Ingest(), "scratch-*")
	return dir, func() { s.Remover.Remove(dir) }, err // the next Open removes what remains
}

// Stage has write make a layer in a new file at path, and returns what it is. A layer that cannot
// be unpacked is registry.ErrInvalid.
func (s *Scratch) Stage(ctx context.Context, path string,
	write func(context.Context, io.Writer) error,
) (layer ocispec.Descriptor, diffID digest.Digest, err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		return layer, "", err
	}
	defer f.Close()
	h := sha256.New()
	room := &roomy{s: s, w: io.MultiWriter(f, h)}
	if err := write(ctx, room); err != nil {
		return layer, "", err
	}
	layer = ocispec.Descriptor{Digest: digest.NewDigest(digest.SHA256, h), Size: room.written}
	if layer.MediaType, err = archive.LayerType(path); err != nil {
		return layer, "", err
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return layer, "", err
	}
	z, err := unpack.Decompress(ctx, f, s.Limits)
	if err == nil {
		defer z.Close()
		h.Reset()
		_, err = io.Copy(h, z)
	}
	if err != nil {
		return layer, "", fmt.Errorf("%w: %w", registry.ErrInvalid, err)
	}
	return layer, digest.NewDigest(digest.SHA256, h), nil
}

// checkRoom fails if that many bytes more would fill the disk.
func (s *Scratch) checkRoom(bytes int64) error {
	return s.Blobs.KeepFree(bytes, s.Limits.MinFree)
}

// roomy writes as long as there is room on the disk.
type roomy struct {
	s       *Scratch
	w       io.Writer
	written int64
	checked int64
}

// roomStep is how often the free space is looked at, in bytes written.
const roomStep = 16 << 20

func (r *roomy) Write(p []byte) (int, error) {
	if r.checked -= int64(len(p)); r.checked < 0 {
		r.checked = roomStep
		if err := r.s.checkRoom(roomStep); err != nil {
			return 0, err
		}
	}
	n, err := r.w.Write(p)
	r.written += int64(n)
	return n, err
}
