package image

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"path/filepath"

	"github.com/coracle-project/coracle/image/unpack"
	"github.com/coracle-project/coracle/internal/fault"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/errgroup"
)

// layerKey tells apart what is fetched: a blob that should unpack to a diff id. The
// registry is a part of it, lest a pull waits for a slower registry than its own.
type layerKey struct {
	registry     string
	blob, diffID digest.Digest
}

// ensureLayer makes sure that a layer's blob and its unpacked directory are in the
// store. Pulls that need the same layer of a registry at the same time share one download.
func (s *Store) ensureLayer(ctx context.Context, src *source, d ocispec.Descriptor, diffID digest.Digest, m *meter) error {
	key := layerKey{src.name.domain, d.Digest, diffID}
	for {
		_, joined, err := s.layers.do(ctx, key, func(ctx context.Context) (struct{}, error) {
			return struct{}{}, s.fetchLayer(ctx, src, d, diffID, m)
		})
		switch {
		case err == nil && joined:
			m.add(d.Size)
			return nil
		case err != nil && joined && ctx.Err() == nil:
			continue // the other pull's registry or credentials failed: try ours
		}
		return err
	}
}

func (s *Store) fetchLayer(ctx context.Context, src *source, d ocispec.Descriptor, diffID digest.Digest, m *meter) error {
	hasBlob, hasLayer := s.layout.has(d), s.cfg.Layers.HasLayer(diffID)
	if hasBlob && hasLayer {
		m.add(d.Size)
		return nil
	}
	release, err := s.downloads.take(ctx, src.name.domain)
	if err != nil {
		return err
	}
	defer release()
	if hasBlob {
		err = s.unpackStored(ctx, d, diffID)
		m.add(d.Size)
	} else {
		err = s.unpackArriving(ctx, src, d, diffID, hasLayer, m)
	}
	if err != nil {
		return err
	}
	return fault.At(ctx, "image.pull.layer")
}

// unpackArriving is the one pass from the registry to the layer's directory: the
// blob is hashed and written to ingest/ as it comes, while a second goroutine
// reads behind, decompresses, hashes again and unpacks. Both are committed only
// when both digests are right.
func (s *Store) unpackArriving(ctx context.Context, src *source, d ocispec.Descriptor, diffID digest.Digest, hasLayer bool, m *meter) (err error) {
	f, err := s.layout.stage()
	if err != nil {
		return fmt.Errorf("store blob %s: %w", d.Digest, err)
	}
	defer os.Remove(f.Name()) // fails once the blob has its name
	defer f.Close()

	spool := newSpool(f)
	g, gctx := errgroup.WithContext(ctx)
	var fetchErr error
	g.Go(func() error {
		fetchErr = src.download(gctx, d, spool, m)
		spool.finish(fetchErr)
		return fetchErr
	})
	in, stop := spool.reader(gctx)
	defer stop()
	var w LayerWriter
	var u unpack.Usage
	g.Go(func() (err error) {
		w, u, err = s.unpack(gctx, in, diffID, hasLayer)
		return err
	})
	err = g.Wait()
	if w != nil {
		defer w.Abort() // nothing after Commit
	}
	// What the unpacking says of a stream that broke off is only a consequence.
	if fetchErr != nil && !errors.Is(fetchErr, context.Canceled) {
		err = fetchErr
	}
	if err != nil {
		return err
	}
	if err := s.layout.keep(f, d.Digest); err != nil {
		return fmt.Errorf("store blob %s: %w", d.Digest, err)
	}
	s.usage.add(d.Digest, d.Size)
	if w == nil {
		return nil
	}
	return w.Commit(ctx, diffID, u.Bytes, u.Inodes)
}

// unpackStored unpacks a blob that is there already.
func (s *Store) unpackStored(ctx context.Context, d ocispec.Descriptor, diffID digest.Digest) error {
	f, err := os.Open(s.layout.blob(d.Digest))
	if err != nil {
		return err
	}
	defer f.Close()
	w, u, err := s.unpack(ctx, f, diffID, false)
	if w != nil {
		defer w.Abort() // nothing after Commit
	}
	if err != nil {
		return err
	}
	return w.Commit(ctx, diffID, u.Bytes, u.Inodes)
}

// unpack decompresses and unpacks a blob into a new layer writer and checks the diff
// id. With only set to verify, nothing is written and the writer is nil. The
// caller commits or aborts the writer, also after an error.
func (s *Store) unpack(ctx context.Context, blob io.Reader, diffID digest.Digest, verifyOnly bool) (w LayerWriter, u unpack.Usage, err error) {
	defer func() {
		if errors.Is(err, unpack.ErrInvalid) {
			err = fmt.Errorf("%w: layer %s: %w", ErrInvalidImage, diffID, err)
		} else if err != nil && ctx.Err() == nil {
			err = fmt.Errorf("unpack layer %s: %w", diffID, err)
		}
	}()
	z, err := unpack.Decompress(ctx, blob, s.cfg.Layer)
	if err != nil {
		return nil, u, err
	}
	defer z.Close()
	h := sha256.New()
	tar := bufio.NewReaderSize(io.TeeReader(z, h), copyBuffer)
	if verifyOnly {
		if _, err := io.Copy(io.Discard, tar); err != nil {
			return nil, u, err
		}
		return nil, u, checkDiffID(h, diffID)
	}
	w, err = s.cfg.Layers.NewLayer(ctx)
	if err != nil {
		return nil, u, err
	}
	if err := s.disks.add(filepath.Dir(w.Dir())); err != nil {
		return w, u, err
	}
	u, err = unpack.Layer(ctx, tar, w.Dir(), s.cfg.Layer)
	if err != nil {
		return w, u, err
	}
	return w, u, checkDiffID(h, diffID)
}

func checkDiffID(h hash.Hash, want digest.Digest) error {
	if got := hex.EncodeToString(h.Sum(nil)); got != want.Encoded() {
		return fmt.Errorf("%w: uncompressed content has digest sha256:%s, its config says %s", unpack.ErrInvalid, got, want)
	}
	return nil
}
