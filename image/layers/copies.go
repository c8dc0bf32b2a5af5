package layers

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/opencontainers/go-digest"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/image/unpack"
	"github.com/coracle-project/coracle/snapshot"
)

// atOnce is how many layers are copied at the same time.
const atOnce = 2

// Bring sees to it that a driver's store has layers that the node's has.
func (s *Store) Bring(ctx context.Context, d snapshot.DriverName, layers []digest.Digest) error {
	to, err := s.Of(d)
	if err != nil || to == s.cfg.Node {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(atOnce)
	for _, layer := range layers {
		g.Go(func() error { return s.copyLayer(ctx, d, to, layer) })
	}
	return g.Wait()
}

// copyLayer makes a copy that outlives a reset of the machine whole or not at all: as long as it
// may not be on disk, a mark says so, and no root is made of it.
func (s *Store) copyLayer(ctx context.Context, d snapshot.DriverName, to *snapshot.Store, layer digest.Digest) error {
	release, err := s.busy.Acquire(ctx, string(d)+"/"+layer.String())
	if err != nil {
		return fmt.Errorf("copy layer %s for snapshotter %s: %w", layer, d, err)
	}
	defer release()
	if to.HasLayer(layer) {
		return nil
	}
	mark := s.mark(d, layer)
	if err := os.WriteFile(mark, nil, 0o600); err != nil {
		return fmt.Errorf("copy layer %s: %w", layer, err)
	}
	err = s.unpack(ctx, to, layer)
	if err == nil {
		err = s.cfg.sync(mark)
	}
	if err == nil {
		err = os.Remove(mark)
	}
	if err == nil && !s.hasOriginal(layer) {
		err = snapshot.ErrLayerMissing // its image was removed while it was copied
	}
	if err != nil {
		// No one else would remove the copy, or know that it may not be on disk.
		err = errors.Join(err, to.RemoveLayer(context.WithoutCancel(ctx), layer))
		return fmt.Errorf("copy layer %s for snapshotter %s: %w", layer, d, err)
	}
	return nil
}

// hasOriginal says whether the node has a layer. If it has, a removal from now on finds
// its copy.
func (s *Store) hasOriginal(layer digest.Digest) bool {
	s.removing.Lock()
	defer s.removing.Unlock()
	return s.cfg.Node.HasLayer(layer)
}

// unpack makes a layer of its archive, as that is made.
func (s *Store) unpack(ctx context.Context, to *snapshot.Store, layer digest.Digest) error {
	w, err := to.NewLayer(ctx)
	if err != nil {
		return err
	}
	archive, out := io.Pipe()
	made := make(chan struct{})
	go func() {
		defer close(made)
		out.CloseWithError(s.cfg.archive(ctx, layer, out)) // its error is the reader's
	}()
	err = unpack.Layer(ctx, archive, unpack.Target{Dir: w.Dir(), Markers: markers(to)}, unpack.Limits{})
	_ = archive.CloseWithError(errors.New("layer is not unpacked")) // never fails
	<-made
	if err == nil {
		err = w.Commit(ctx, layer)
	}
	if err != nil {
		return errors.Join(err, w.Abort())
	}
	return nil
}

// syncFS writes the file system that path is on to disk.
func syncFS(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := unix.Syncfs(int(f.Fd())); err != nil {
		return fmt.Errorf("sync %s: %w", path, err)
	}
	return nil
}

// RemoveLayer removes a layer and its copies. snapshot.ErrLayerInUse if a snapshot uses one; then
// the layer stays.
func (s *Store) RemoveLayer(ctx context.Context, d digest.Digest) error {
	s.removing.Lock()
	defer s.removing.Unlock()
	for _, store := range s.others() {
		if err := store.RemoveLayer(ctx, d); err != nil {
			return err
		}
	}
	return s.cfg.Node.RemoveLayer(ctx, d)
}

// HasCopy says whether there is a copy of a layer.
func (s *Store) HasCopy(d digest.Digest) bool {
	return slices.ContainsFunc(s.others(), func(store *snapshot.Store) bool { return store.HasLayer(d) })
}

// CheckCopies makes the archive of a layer from each copy: unpack.ErrDamaged if one is not the
// layer, or cannot even be opened. The error names the snapshotters whose copies are damaged.
func (s *Store) CheckCopies(ctx context.Context, d digest.Digest) (err error) {
	layer, err := s.cfg.Node.OpenLayer(ctx, d)
	if errors.Is(err, snapshot.ErrLayerMissing) {
		return nil // removed meanwhile, and its copies with it
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, layer.Close()) }()
	var errs []error
	for _, name := range drivers {
		store := s.at(name)
		if store == nil {
			continue
		}
		if err := checkCopy(ctx, store, d, layer); err != nil {
			errs = append(errs, fmt.Errorf("copy for snapshotter %s: %w", name, err))
		}
	}
	return errors.Join(errs...)
}

// checkCopy compares the copy that a store has of a layer, if it has one.
func checkCopy(ctx context.Context, store *snapshot.Store, d digest.Digest, layer *snapshot.LayerView) error {
	files, err := store.OpenLayer(ctx, d)
	switch {
	case errors.Is(err, snapshot.ErrLayerMissing):
		return nil
	case errors.Is(err, snapshot.ErrDamaged):
		return fmt.Errorf("%w: %w", unpack.ErrDamaged, err)
	case err != nil:
		return err
	}
	return errors.Join(archive(ctx, d, files, layer, io.Discard), files.Close())
}

// DropCopies takes the copies of a layer out of use. They are made again for the next container
// that wants them.
func (s *Store) DropCopies(d digest.Digest) error {
	var errs []error
	for _, store := range s.others() {
		errs = append(errs, store.Quarantine(d))
	}
	return errors.Join(errs...)
}

// InUse says whether a snapshot uses the layer or a copy.
func (s *Store) InUse(d digest.Digest) bool {
	for _, store := range s.others() {
		if store.InUse(d) {
			return true
		}
	}
	return s.cfg.Node.InUse(d)
}

// LayerUsage is what a layer takes with its copies.
func (s *Store) LayerUsage(d digest.Digest) (snapshot.Usage, error) {
	u, err := s.cfg.Node.LayerUsage(d)
	for _, store := range s.others() {
		if more, err := store.LayerUsage(d); err == nil {
			u.Bytes, u.Inodes = u.Bytes+more.Bytes, u.Inodes+more.Inodes
		}
	}
	return u, err
}

// Flush waits until everything removed before it was called is off the disk.
func (s *Store) Flush(ctx context.Context) error {
	errs := []error{s.cfg.Node.Flush(ctx)}
	for _, store := range s.others() {
		errs = append(errs, store.Flush(ctx))
	}
	return errors.Join(errs...)
}
