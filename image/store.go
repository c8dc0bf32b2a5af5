package image

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// errClosed is returned by calls on a closed store.
var errClosed = errors.New("image store is closed")

// Store is the images of this node. Its methods may be called concurrently. Get and
// List read memory only.
type Store struct {
	cfg    Config
	layout layout
	remote *transports

	// now is the present catalog. It is replaced under commitMu, after
	// index.json has been.
	now      atomic.Pointer[catalog]
	commitMu sync.Mutex

	pulls     flight[pullKey, Image]
	layers    flight[layerKey, struct{}]
	downloads slots

	meterMu sync.Mutex
	meters  map[pullKey]*meter

	// sweep is held (one element) while garbage is removed and while pins
	// change, so that a pull never finds a blob that is about to go.
	sweep chan struct{}
	pins  map[digest.Digest]int // guarded by sweep

	usage usage
	disks disks

	ctx   context.Context // ends at Close
	close context.CancelFunc
	wg    sync.WaitGroup // calls that write
}

// Open reads the store and brings it in order: stale downloads, blobs and layers
// that no image needs are removed, images whose blobs are damaged or missing are
// dropped with a warning. An index.json that cannot be read is an error.
func Open(cfg Config) (*Store, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	remote, err := newTransports(cfg)
	if err != nil {
		return nil, err
	}
	s := &Store{
		cfg:       cfg,
		layout:    layout{cfg.Root},
		remote:    remote,
		downloads: slots{each: cfg.MaxConcurrentDownloads},
		meters:    map[pullKey]*meter{},
		sweep:     make(chan struct{}, 1),
		pins:      map[digest.Digest]int{},
	}
	s.ctx, s.close = context.WithCancel(context.Background())
	if err := s.recover(s.ctx); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

func (s *Store) recover(ctx context.Context) error {
	if err := s.layout.create(); err != nil {
		return fmt.Errorf("open image store: %w", err)
	}
	if err := s.disks.add(s.layout.root); err != nil {
		return fmt.Errorf("open image store: %w", err)
	}
	index, err := s.layout.loadIndex()
	if err != nil {
		return err
	}
	entries := make([]named, 0, len(index))
	for _, e := range index {
		c, err := s.loadContent(ctx, e.top)
		if err != nil {
			s.cfg.Log.Warn("image dropped: it is damaged and has to be pulled again", "image", e.name.String(), "error", err)
			continue
		}
		entries = append(entries, named{name: e.name, pulled: e.pulled, content: c})
	}
	s.now.Store(newCatalog(entries))
	if len(entries) != len(index) {
		if err := s.layout.saveIndex(entries); err != nil {
			return err
		}
	}
	if err := s.usage.count(s.layout.blobs()); err != nil {
		return fmt.Errorf("open image store: %w", err)
	}
	return s.GC(ctx)
}

// loadContent reads an image back from the blobs and checks that all of it is there.
func (s *Store) loadContent(ctx context.Context, top ocispec.Descriptor) (*content, error) {
	data, err := s.layout.read(ctx, top)
	if err != nil {
		return nil, err
	}
	c, err := resolve(ctx, top, data, s.layout.read)
	if err != nil {
		return nil, err
	}
	c.forget()
	for i, l := range c.layers {
		if !s.layout.has(l) {
			return nil, fmt.Errorf("%w: blob %s is missing or has the wrong size", ErrInvalidImage, l.Digest)
		}
		if d := c.image.RootFS.DiffIDs[i]; !s.cfg.Layers.HasLayer(d) {
			return nil, fmt.Errorf("%w: layer %s is missing", ErrInvalidImage, d)
		}
	}
	return c, nil
}

// Get returns an image by reference (any form that docker accepts), id, or the
// beginning of an id, at least 6 digits. Kinds: ErrNotFound, ErrInvalidReference.
func (s *Store) Get(refOrID string) (Image, error) {
	img, err := s.now.Load().find(refOrID)
	if err != nil {
		return Image{}, err
	}
	return *img, nil
}

// List returns all images, ordered by id.
func (s *Store) List() []Image { return slices.Clone(s.now.Load().list) }

// Remove removes an image with all its names, whichever of them is given, as CRI's
// RemoveImage asks. An image that is not there is success. Layers that containers run
// from stay until a later collection.
func (s *Store) Remove(ctx context.Context, refOrID string) error {
	if err := s.begin(); err != nil {
		return err
	}
	defer s.wg.Done()
	err := func() error {
		s.commitMu.Lock()
		defer s.commitMu.Unlock()
		now := s.now.Load()
		img, err := now.find(refOrID)
		if err != nil {
			return err
		}
		return s.commitLocked(now.without(img.ID))
	}()
	if errors.Is(err, ErrNotFound) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("remove image %s: %w", refOrID, err)
	}
	return s.GC(ctx)
}

// commitLocked makes entries the store's images. commitMu is held.
func (s *Store) commitLocked(entries []named) error {
	if err := s.layout.saveIndex(entries); err != nil {
		return err
	}
	s.now.Store(newCatalog(entries))
	return nil
}

// commit adds a pulled image.
func (s *Store) commit(e named) (Image, error) {
	s.commitMu.Lock()
	defer s.commitMu.Unlock()
	if err := s.commitLocked(s.now.Load().with(e)); err != nil {
		return Image{}, err
	}
	return *s.now.Load().images[e.config.Digest], nil
}

// begin enters a call that Close waits for.
func (s *Store) begin() error {
	s.commitMu.Lock()
	defer s.commitMu.Unlock()
	if s.ctx.Err() != nil {
		return errClosed
	}
	s.wg.Add(1)
	return nil
}

// Close cancels what is under way and waits until it has stopped.
func (s *Store) Close() error {
	s.commitMu.Lock()
	s.close()
	s.commitMu.Unlock()
	s.wg.Wait()
	s.remote.close()
	return s.disks.close()
}

// cleanupTimeout bounds cleaning up after a cancelled call.
const cleanupTimeout = time.Minute
