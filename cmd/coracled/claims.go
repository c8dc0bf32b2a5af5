package main

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/coracle-project/coracle/image"
	"github.com/coracle-project/coracle/image/layers"
	"github.com/coracle-project/coracle/image/unpack"
	"github.com/coracle-project/coracle/imageapi"
	"github.com/coracle-project/coracle/snapshot"
)

// podSnapshots are the snapshots as pods see them, which believe that all are theirs.
type podSnapshots struct {
	node *snapshot.Store
	*layers.Store
	images *image.Store
	// collect asks for a collection of garbage; restored has the ids of containers with a layer
	// that no image names. Those of an earlier daemon are garbage when this one starts.
	collect  func()
	restored *sync.Map
}

// Remove also sees to it that a layer of a checkpoint goes with its container.
func (s podSnapshots) Remove(ctx context.Context, id string) error {
	err := s.Store.Remove(ctx, id)
	if _, ok := s.restored.LoadAndDelete(id); ok {
		s.collect()
	}
	return err
}

// Recover also keeps what `coracle image mount` has mounted.
func (s podSnapshots) Recover(ctx context.Context, claimed []string) error {
	return s.Store.Recover(ctx, append(claimed[:len(claimed):len(claimed)], imageapi.Mounts(s.node)...))
}

// removeMounts ends them.
func (n *node) removeMounts(ctx context.Context) error {
	var errs []error
	for _, id := range imageapi.Mounts(n.snapshots) {
		errs = append(errs, n.snapshots.Remove(ctx, id))
	}
	return errors.Join(errs...)
}

// restoreTime is how long a layer of a checkpoint is kept before a container has it.
const restoreTime = 10 * time.Minute

// AddLayer unpacks what a container had written when it was saved.
func (s podSnapshots) AddLayer(ctx context.Context, id string, archive io.ReadSeeker) (d digest.Digest, release func(context.Context) error, err error) {
	if d, err = digest.FromReader(archive); err != nil {
		return "", nil, err
	}
	lease := "restore-" + id
	if err := s.images.Lease(ctx, lease, restoreTime, d); err != nil {
		return "", nil, err
	}
	release = func(ctx context.Context) error { return s.images.Release(ctx, lease) }
	s.restored.Store(id, nil)
	if s.node.HasLayer(d) {
		return d, release, nil
	}
	if err := s.unpack(ctx, archive, d); err != nil {
		return "", nil, errors.Join(err, release(ctx))
	}
	return d, release, nil
}

func (s podSnapshots) unpack(ctx context.Context, archive io.ReadSeeker, d digest.Digest) error {
	if _, err := archive.Seek(0, io.SeekStart); err != nil {
		return err
	}
	w, err := s.node.NewLayer(ctx)
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
		err = w.Commit(ctx, d)
	}
	if err != nil {
		return errors.Join(err, w.Abort())
	}
	return nil
}
