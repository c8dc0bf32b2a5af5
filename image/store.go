package image

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/coracle-project/coracle/image/ledger"
	"github.com/coracle-project/coracle/image/registry"
	"github.com/coracle-project/coracle/internal/remover"
)

// errClosed is returned by calls on a closed store.
var errClosed = errors.New("image store is closed")

// Store is the images of this node. Its methods may be called concurrently. Get and
// List read memory only.
type Store struct {
	cfg        Config
	registries atomic.Pointer[registry.Client] // SetRegistries replaces it

	ledger   *ledger.Ledger
	blobs    *blobs
	index    *index
	garbage  *garbage
	unpacker *unpacker
	lazies   *lazies

	pulls flight[pullKey, Image]

	meterMu sync.Mutex
	meters  map[pullKey]*meter

	remover *remover.Remover // of scratch directories

	reclaiming sync.Mutex // held while images are removed to make room

	ctx   context.Context // ends at Close
	close context.CancelFunc
	wg    sync.WaitGroup // calls that write
	begun sync.Mutex     // held while one is added, and when no more may be
}

// Open reads the store and brings it in order: stale downloads, blobs and layers
// that no image needs are removed. Damage is no reason not to open: what is damaged is set
// aside or dropped with a warning, and what it may have to do with is kept for a day, so
// that pulling again fetches no more than it must.
func Open(cfg Config) (*Store, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	registries, err := registry.NewClient(cfg.Registries)
	if err != nil {
		return nil, fmt.Errorf("image store: %w", err)
	}
	if _, err := cfg.Policy.Load(); err != nil {
		return nil, err // rather than at each pull
	}
	s := &Store{
		cfg:    cfg,
		blobs:  newBlobs(cfg.Root, cfg.KeepBlobs),
		meters: map[pullKey]*meter{},

		remover: remover.New(cfg.Log),
	}
	s.registries.Store(registries)
	s.ctx, s.close = context.WithCancel(context.Background())
	if err := s.recover(s.ctx); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

func (s *Store) recover(ctx context.Context) error {
	strange, err := s.blobs.create()
	for _, d := range strange {
		s.cfg.Log.Warn("image store is damaged", "error", d)
	}
	if err != nil {
		return fmt.Errorf("open image store: %w", err)
	}
	if err := s.blobs.disks.add(s.blobs.root); err != nil {
		return fmt.Errorf("open image store: %w", err)
	}
	if s.ledger, err = ledger.Open(s.blobs.ledger(), s.cfg.Log); err != nil {
		return fmt.Errorf("open image store: %w", err)
	}
	s.unpacker = newUnpacker(&s.cfg, s.blobs, s.ledger)
	lines, damage, err := s.blobs.loadIndex()
	if err != nil {
		return fmt.Errorf("open image store: %w", err)
	}
	for _, d := range damage {
		s.cfg.Log.Warn("image index is damaged: images may have to be pulled again", "error", d)
	}
	entries := make([]named, 0, len(lines))
	for _, e := range lines {
		c, err := s.loadContent(ctx, e.top)
		if err != nil {
			s.cfg.Log.Warn("image dropped: it is damaged and has to be pulled again", "image", e.name.String(), "error", err)
			continue
		}
		entries = append(entries, named{name: e.name, pulled: at(e.pulled), content: c})
	}
	s.index = newIndex(&s.cfg, s.blobs.layout, s.ledger, entries)
	s.garbage = newGarbage(&s.cfg, s.index, s.ledger, s.blobs)
	s.lazies = newLazies(s)
	if len(entries) != len(lines) || len(damage) > 0 {
		if err := s.repairIndex(entries, len(damage) > 0); err != nil {
			return fmt.Errorf("open image store: %w", err)
		}
	}
	if err := s.blobs.usage.count(s.blobs.blobs()); err != nil {
		return fmt.Errorf("open image store: %w", err)
	}
	if err := s.GC(ctx); err != nil {
		s.cfg.Log.Warn("garbage of images is left", "error", err)
	}
	if s.cfg.Lazy == nil {
		return nil
	}
	return s.lazies.landAll()
}

// repairIndex writes the index again, with the images that are whole.
func (s *Store) repairIndex(entries []named, damaged bool) error {
	if err := s.garbage.salvage(); err != nil {
		s.cfg.Log.Warn("images have to be pulled again with all of their layers", "error", err)
	}
	if damaged {
		if aside, err := s.blobs.keepIndex(); err != nil {
			s.cfg.Log.Warn("damaged image index is not kept", "error", err)
		} else {
			s.cfg.Log.Warn("damaged image index is kept", "file", aside)
		}
	}
	return s.blobs.saveIndex(entries)
}

// loadContent reads an image back from the blobs and checks that all of it is there.
func (s *Store) loadContent(ctx context.Context, top ocispec.Descriptor) (*content, error) {
	data, err := s.blobs.read(ctx, top)
	if err != nil {
		return nil, err
	}
	c, err := resolve(ctx, top, data, s.blobs.read)
	if err != nil {
		return nil, err
	}
	c.forget()
	for i := range c.layers {
		if d := c.image.RootFS.DiffIDs[i]; !s.cfg.Layers.HasLayer(d) && !s.unpacker.isLazy(c.layers[i], d) {
			return nil, fmt.Errorf("%w: layer %s is missing", ErrInvalidImage, d)
		}
	}
	return c, nil
}

// Get returns an image by reference (any form that docker accepts), id, or the
// beginning of an id, at least 6 digits. Kinds: ErrNotFound, ErrInvalidReference.
func (s *Store) Get(refOrID string) (Image, error) {
	img, err := s.index.now.Load().find(refOrID)
	if err != nil {
		return Image{}, err
	}
	return img.view(), nil
}

// List returns all images, ordered by id.
func (s *Store) List() []Image {
	list := s.index.now.Load().list()
	all := make([]Image, len(list))
	for i, img := range list {
		all[i] = img.view()
	}
	return all
}

// Remove removes an image with all its names, whichever of them is given, as CRI's
// RemoveImage asks. An image that is not there is success. Layers that containers run
// from stay until a later collection.
func (s *Store) Remove(ctx context.Context, refOrID string) error {
	if err := s.begin(); err != nil {
		return err
	}
	defer s.wg.Done()
	_, err := s.takeAway(ctx, removal{ref: refOrID, all: true})
	if errors.Is(err, ErrNotFound) {
		return nil
	}
	return err
}

// commit adds an image that was pulled or brought.
func (s *Store) commit(es ...named) (Image, error) {
	img, err := s.index.add(es...)
	if err == nil {
		s.reclaimSoon()
	}
	return img, err
}

// begin enters a call that Close waits for.
func (s *Store) begin() error {
	s.begun.Lock()
	defer s.begun.Unlock()
	if s.ctx.Err() != nil {
		return errClosed
	}
	s.wg.Add(1)
	return nil
}

// SetRegistries changes how registries are reached. Transfers under way go on as they began. On
// error nothing has changed.
func (s *Store) SetRegistries(c registry.Config) error {
	registries, err := registry.NewClient(c)
	if err != nil {
		return fmt.Errorf("image store: %w", err)
	}
	s.registries.Swap(registries).Close()
	return nil
}

// Close cancels what is under way and waits until it has stopped.
func (s *Store) Close() error {
	s.begun.Lock()
	s.close()
	s.begun.Unlock()
	s.wg.Wait()
	s.remover.Close()
	s.registries.Load().Close()
	return errors.Join(s.index.close(), s.ledger.Close(), s.blobs.disks.close())
}

// cleanupTimeout bounds cleaning up after a cancelled call.
const cleanupTimeout = time.Minute
