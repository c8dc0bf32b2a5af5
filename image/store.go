package image

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/coracle-project/coracle/image/blobs"
	"github.com/coracle-project/coracle/image/catalog"
	"github.com/coracle-project/coracle/image/garbage"
	"github.com/coracle-project/coracle/image/ingest"
	"github.com/coracle-project/coracle/image/ledger"
	"github.com/coracle-project/coracle/image/pack"
	"github.com/coracle-project/coracle/image/peer"
	"github.com/coracle-project/coracle/image/registry"
	"github.com/coracle-project/coracle/internal/remover"
)

// Store is the images of this node. Its methods may be called concurrently. Get and
// List read memory only.
type Store struct {
	cfg        Config
	registries atomic.Pointer[registry.Client] // SetRegistries replaces it

	ledger   *ledger.Ledger
	blobs    *blobs.Store
	index    *catalog.Index
	garbage  *garbage.Sweeper
	unpacker *ingest.Unpacker
	lazies   *lazies

	shares *shares
	peers  *peer.Swarm

	reclaimer *reclaimer
	puller    *puller
	adder     *adder
	packs     pack.Store

	remover *remover.Remover // of scratch directories
	calls   *calls
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
		cfg:     cfg,
		blobs:   blobs.New(cfg.Root, cfg.KeepBlobs),
		remover: remover.New(cfg.Log),
		calls:   newCalls(),
	}
	s.registries.Store(registries)
	if err := s.recover(s.calls.ctx); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

func (s *Store) recover(ctx context.Context) error {
	strange, err := s.blobs.Create()
	for _, d := range strange {
		s.cfg.Log.Warn("image store is damaged", "err", d)
	}
	if err != nil {
		return fmt.Errorf("open image store: %w", err)
	}
	if err := s.blobs.AddDisk(s.blobs.Root); err != nil {
		return fmt.Errorf("open image store: %w", err)
	}
	if s.ledger, err = ledger.Open(s.blobs.LedgerFile(), s.cfg.Log); err != nil {
		return fmt.Errorf("open image store: %w", err)
	}
	s.unpacker = ingest.New(ingest.Options{
		Blobs: s.blobs, Ledger: s.ledger, Layers: s.cfg.Layers, Lazy: s.cfg.Lazy, Keys: s.cfg.Keys, Limits: s.cfg.Layer, Log: s.cfg.Log,
	})
	lines, damage, err := catalog.File(s.blobs.IndexFile()).Load()
	if err != nil {
		return fmt.Errorf("open image store: %w", err)
	}
	for _, d := range damage {
		s.cfg.Log.Warn("image index is damaged: images may have to be pulled again", "err", d)
	}
	entries := make([]catalog.Entry, 0, len(lines))
	for _, e := range lines {
		c, err := s.unpacker.Load(ctx, e.Top)
		if err != nil {
			s.cfg.Log.Warn("image dropped: it is damaged and has to be pulled again", "image", e.Name.String(), "err", err)
			continue
		}
		entries = append(entries, catalog.Entry{Name: e.Name, Pulled: catalog.At(e.Pulled), Archive: e.Archive, Content: c})
	}
	options := catalog.Options{Short: s.cfg.short(), Pinned: s.cfg.Pinned, KeepBlobs: s.cfg.KeepBlobs}
	s.index = catalog.New(options, catalog.File(s.blobs.IndexFile()), s.ledger, entries)
	s.garbage = garbage.New(s.index, s.ledger, s.blobs, s.cfg.Layers, s.cfg.Log)
	s.lazies = newLazies(s)
	s.reclaimer = &reclaimer{cfg: &s.cfg, index: s.index, garbage: s.garbage, root: s.blobs.Root, layers: s.cfg.Layers, calls: s.calls}
	scratch := &pack.Scratch{Blobs: s.blobs, Limits: s.cfg.Layer, Remover: s.remover}
	s.adder = &adder{blobs: s.blobs, garbage: s.garbage, unpacker: s.unpacker, scratch: scratch, calls: s.calls, commit: s.commit}
	s.packs = pack.Store{
		Index: s.index, Blobs: s.blobs, Pin: s.garbage.Hold, AwaitWhole: s.lazies.awaitWhole, Layers: s.cfg.Layers, Limits: s.cfg.Layer,
		Scratch: scratch,
	}
	s.shares = newShares(s)
	s.peers = peer.New(s.shares, s.cfg.Log)
	s.puller = newPuller(s)
	if len(entries) != len(lines) || len(damage) > 0 {
		if err := s.garbage.RepairIndex(entries, len(damage) > 0); err != nil {
			return fmt.Errorf("open image store: %w", err)
		}
	}
	if err := s.blobs.TakeStock(); err != nil {
		return fmt.Errorf("open image store: %w", err)
	}
	if err := s.GC(ctx); err != nil {
		s.cfg.Log.Warn("garbage of images is left", "err", err)
	}
	if s.cfg.Lazy == nil {
		return nil
	}
	return s.lazies.landAll()
}

// Get returns an image by reference (any form that docker accepts), id, or the
// beginning of an id, at least 6 digits. Kinds: ErrNotFound, ErrInvalidReference.
func (s *Store) Get(refOrID string) (Image, error) {
	img, err := s.index.Present().Find(refOrID)
	if err != nil {
		return Image{}, err
	}
	return img.View(), nil
}

// List returns all images, ordered by id.
func (s *Store) List() []Image {
	return s.index.List()
}

// Remove removes an image with all its names, whichever of them is given, as CRI's
// RemoveImage asks. An image that is not there is success. Layers that containers run
// from stay until a later collection.
func (s *Store) Remove(ctx context.Context, refOrID string) error {
	if err := s.calls.begin(); err != nil {
		return err
	}
	defer s.calls.done()
	_, err := s.garbage.Remove(ctx, catalog.Removal{Ref: refOrID, All: true})
	if errors.Is(err, ErrNotFound) {
		return nil
	}
	return err
}

// commit adds an image that was pulled or brought.
func (s *Store) commit(es ...catalog.Entry) (Image, error) {
	img, err := s.index.Add(es...)
	if err == nil {
		s.reclaimer.soon()
	}
	return img, err
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

// SetPeers says which other nodes layers are passed on to, and fetched from. On error there are
// none.
func (s *Store) SetPeers(p peer.Settings) error { return s.peers.Set(p) }

// Close cancels what is under way and waits until it has stopped.
func (s *Store) Close() error {
	s.calls.close()
	s.peers.Close()
	s.remover.Close()
	s.registries.Load().Close()
	return errors.Join(s.index.Close(), s.ledger.Close(), s.blobs.Close())
}
