package layers

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/coracle-project/coracle/image"
	"github.com/coracle-project/coracle/image/unpack"
)

// Roots are the root file systems of pods: a Store that also takes the layers of checkpoints. It
// leaves alone what `coracle image mount` has mounted.
type Roots struct {
	*Store
	images *image.Store
	// collect asks for a collection of garbage; restored has the ids of containers with a layer
	// that no image names. Those of an earlier daemon are garbage when this one starts.
	collect  func()
	restored sync.Map
}

// NewRoots returns the roots in s. Leases of images keep a checkpoint's layer until a container has
// it; collect is called when that container is removed.
func NewRoots(s *Store, images *image.Store, collect func()) *Roots {
	return &Roots{Store: s, images: images, collect: collect}
}

// Remove removes a root. The layer of a checkpoint goes with its container.
func (r *Roots) Remove(ctx context.Context, id string) error {
	err := r.Store.Remove(ctx, id)
	if _, ok := r.restored.LoadAndDelete(id); ok {
		r.collect()
	}
	return err
}

// Recover removes every root whose id is not claimed.
func (r *Roots) Recover(ctx context.Context, claimed []string) error {
	return r.Store.Recover(ctx, append(claimed[:len(claimed):len(claimed)], Mounts(r.cfg.Node)...))
}

// restoreTime is how long a layer of a checkpoint is kept before a container has it.
const restoreTime = 10 * time.Minute

// AddLayer unpacks what a container had written when it was saved.
func (r *Roots) AddLayer(ctx context.Context, id string,
	archive io.ReadSeeker,
) (d digest.Digest, release func(context.Context) error, err error) {
	if d, err = digest.FromReader(archive); err != nil {
		return "", nil, err
	}
	lease := "restore-" + id
	if err := r.images.Lease(ctx, lease, restoreTime, d); err != nil {
		return "", nil, err
	}
	release = func(ctx context.Context) error { return r.images.Release(ctx, lease) }
	r.restored.Store(id, nil)
	if r.HasLayer(d) {
		return d, release, nil
	}
	if err := r.restore(ctx, archive, d); err != nil {
		return "", nil, errors.Join(err, release(ctx))
	}
	return d, release, nil
}

// restore makes the layer d of an archive.
func (s *Store) restore(ctx context.Context, archive io.ReadSeeker, d digest.Digest) error {
	if _, err := archive.Seek(0, io.SeekStart); err != nil {
		return err
	}
	w, err := s.cfg.Node.NewLayer(ctx)
	if err != nil {
		return err
	}
	// Once more: an archive that changes meanwhile must not pass for another layer.
	verified := d.Verifier()
	err = unpack.Layer(ctx, io.TeeReader(archive, verified), unpack.Target{Dir: w.Dir(), Markers: s.Markers()}, unpack.Limits{})
	if err == nil && !verified.Verified() {
		err = errors.New("the archive changed while it was read")
	}
	if err == nil {
		// A layer with a name counts as whole after a crash: its files must be on disk before.
		err = s.cfg.sync(w.Dir())
	}
	if err == nil {
		err = w.Commit(ctx, d)
	}
	if err != nil {
		return errors.Join(err, w.Abort())
	}
	return nil
}
