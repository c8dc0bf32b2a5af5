package image

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/errgroup"

	"github.com/coracle-project/coracle/image/ingest"
	"github.com/coracle-project/coracle/image/pack"
	"github.com/coracle-project/coracle/image/reference"
	"github.com/coracle-project/coracle/image/registry"
)

// PushOptions are the choices of one push.
type PushOptions struct {
	Auth Auth
	// Progress, if not nil, is called from one goroutine at a time with the bytes that
	// the registry has of all it needs.
	Progress func(done, total int64)
}

// Pushed is what a registry has after a push.
type Pushed struct {
	Name   string        // normalized
	Digest digest.Digest // of the manifest
	Notes  []string      // what is not as a user may expect, for people
}

// pushes is how many blobs are sent at a time.
const pushes = 3

// Push sends an image, found as by Get, to the registry under a name with a tag; to "" is the name
// that it is found by. Blobs that the registry has are not sent again, and those that another of
// its repositories has are taken over from there. Of an image for several platforms, this machine's
// is sent. Layers whose blobs are neither kept nor in the registry are packed again; Notes say so.
func (s *Store) Push(ctx context.Context, refOrID, to string, o PushOptions) (Pushed, error) {
	if to == "" {
		to = refOrID
	}
	n, err := s.cfg.short().Parse(to)
	if err == nil && n.Digest != "" {
		err = fmt.Errorf("%w: %q has a digest: an image is pushed to name:tag", ErrInvalidReference, to)
	}
	if err != nil {
		return Pushed{}, err
	}
	if err := s.calls.begin(); err != nil {
		return Pushed{}, err
	}
	defer s.calls.done()
	ctx, stop := s.calls.bound(ctx)
	defer stop()
	pushed, err := s.push(ctx, refOrID, n, o)
	if err != nil {
		return Pushed{}, fmt.Errorf("push %s: %w", n, because(ctx, err))
	}
	return pushed, nil
}

func (s *Store) push(ctx context.Context, refOrID string, n reference.Name, o PushOptions) (pushed Pushed, err error) {
	img, err := s.index.Present().Find(refOrID)
	if err != nil {
		return pushed, err
	}
	repo, err := s.registries.Load().Repository(n.Domain, n.Path, o.Auth)
	if err != nil {
		return pushed, err
	}
	from := siblings(&img.Image, n)
	up, err := repo.Upload(ctx, from...)
	if err != nil {
		return pushed, err
	}
	there := map[digest.Digest]bool{}
	k, err := s.packs.Packer(pack.AsBlobs, func(d ocispec.Descriptor) (bool, error) {
		has, err := up.Has(ctx, d, from...)
		there[d.Digest] = has
		return has, err
	})
	if err != nil {
		return pushed, err
	}
	defer k.Close()
	p, err := k.Pack(ctx, refOrID)
	if err != nil {
		return pushed, err
	}
	defer func() { err = errors.Join(err, p.Release()) }()
	if err := sendAll(ctx, up, p, from, there, o.Progress); err != nil {
		return pushed, err
	}
	if err := up.Manifest(ctx, p.Manifest, p.Documents[p.Manifest.Digest], n.Tag); err != nil {
		return pushed, err
	}
	if p.Top.Digest != p.Was {
		p.Notes = append(p.Notes, "the image was pulled for several platforms; only this machine's is pushed")
	}
	return Pushed{Name: n.String(), Digest: p.Manifest.Digest, Notes: p.Notes}, nil
}

// siblings are the other repositories of the registry that the image came from.
func siblings(img *Image, n reference.Name) (paths []string) {
	for _, d := range img.RepoDigests {
		if m, err := reference.Parse(d); err == nil && m.Domain == n.Domain && m.Path != n.Path && !slices.Contains(paths, m.Path) {
			paths = append(paths, m.Path)
		}
	}
	return paths
}

// sendAll sends the blobs that the registry has not.
func sendAll(ctx context.Context, up *registry.Upload, p *pack.Parcel, from []string, there map[digest.Digest]bool,
	report func(done, total int64),
) error {
	m := &ingest.Meter{}
	if report != nil {
		m.Watch(&ingest.Watcher{Report: report})
	}
	type blob struct {
		d    ocispec.Descriptor
		open func() (io.ReadCloser, error)
	}
	blobs := map[digest.Digest]blob{p.Config.Digest: {p.Config, func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(p.Documents[p.Config.Digest])), nil
	}}}
	for _, l := range p.Layers {
		blobs[l.Blob.Digest] = blob{l.Blob, func() (io.ReadCloser, error) { return l.Open(ctx) }}
	}
	var total int64
	for _, b := range blobs {
		total += b.d.Size
	}
	m.Expect(total)
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(pushes)
	for d, b := range blobs {
		if there[d] {
			m.Add(b.d.Size)
			continue
		}
		g.Go(func() error {
			has, err := up.Has(gctx, b.d, from...)
			if err != nil {
				return err
			}
			if has {
				m.Add(b.d.Size)
				return nil
			}
			return up.Blob(gctx, b.d, b.open, m.Add)
		})
	}
	return g.Wait()
}
