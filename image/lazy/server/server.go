// Package server shows layers that are not here yet (package lazy says what that is): it is what
// the process coracle-lazy does.
package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/image/lazy"
	"github.com/coracle-project/coracle/image/lazy/show"
)

// Holder keeps a layer for the process that comes after this one: its connection to the kernel, and
// a record.
type Holder interface {
	Hold(key string, record []byte, conn *os.File) error
	Drop(key string)
}

// Server is the layers that are shown. Its methods may be called concurrently.
type Server struct {
	holder  Holder
	log     *slog.Logger
	chunks  *chunks
	clients clients
	tables  *tables

	ctx  context.Context // ends at Close
	stop context.CancelFunc
	work sync.WaitGroup

	mu     sync.Mutex
	layers map[string]*shown      // by key
	busy   map[digest.Digest]bool // being made, by diff id
}

// New returns a server of no layers.
func New(h Holder, log *slog.Logger) *Server {
	s := &Server{
		holder: h, log: log, chunks: newChunks(), tables: &tables{most: tableBytes},
		layers: map[string]*shown{}, busy: map[digest.Digest]bool{},
	}
	s.ctx, s.stop = context.WithCancel(context.Background())
	return s
}

// Close stops fetching. Mounts stay, and are answered again by the process after this one.
func (s *Server) Close() { s.stop() }

// Wait returns when no layer is left.
func (s *Server) Wait() { s.work.Wait() }

// record is what is held of a layer.
type record struct {
	Layer    lazy.Layer    `json:"layer"`
	Greeting show.Greeting `json:"greeting"`
	// Unpacked is where the files are, End of which blob's table: then there is no blob any more to
	// read it from.
	Unpacked string `json:"unpacked,omitempty"`
	End      int64  `json:"end"`
}

// Show mounts a layer, once its table of contents is here and right. One that was shown before may
// still be what containers run from: it goes on, but is not meant any more by its diff id. On error
// nothing is left. Kinds: lazy.ErrUnsuitable, those of package registry.
func (s *Server) Show(ctx context.Context, l lazy.Layer) error {
	if err := check(l); err != nil {
		return err
	}
	s.mu.Lock()
	if s.busy[l.DiffID] {
		s.mu.Unlock()
		return fmt.Errorf("%w: layer %s is being made already", lazy.ErrUnsuitable, l.DiffID)
	}
	s.busy[l.DiffID] = true
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.busy, l.DiffID)
	}()
	return s.begin(ctx, l)
}

func check(l lazy.Layer) error {
	for _, d := range []digest.Digest{l.DiffID, l.Blob, l.TOC} {
		if err := d.Validate(); err != nil {
			return fmt.Errorf("%w: digest %q: %w", lazy.ErrUnsuitable, d, err)
		}
	}
	if !filepath.IsAbs(l.Dir) || l.Size <= 0 || l.Timeout <= 0 {
		return fmt.Errorf("%w: directory %q, %d bytes, timeout %s", lazy.ErrUnsuitable, l.Dir, l.Size, l.Timeout)
	}
	return nil
}

func (s *Server) begin(ctx context.Context, l lazy.Layer) (err error) {
	// The time tells which is the newer.
	x, err := s.newShown(fmt.Sprintf("%s.%016x", l.DiffID.Encoded(), time.Now().UnixNano()), l)
	if err != nil {
		return err
	}
	if err := x.readTable(ctx, true); err != nil {
		x.discard()
		return err
	}
	at := filepath.Join(l.Dir, lazy.FS)
	if x.conn, err = show.Mount(at); err != nil {
		x.discard()
		return fmt.Errorf("%w: %w", lazy.ErrUnsuitable, err)
	}
	x.server, x.greeting, err = show.Begin(x.conn, x.tree, x)
	if err == nil {
		err = s.hold(x)
	}
	if err != nil {
		err = errors.Join(fmt.Errorf("%w: %w", lazy.ErrUnsuitable, err), unix.Unmount(at, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW))
		if x.server != nil {
			s.work.Go(x.server.Serve) // until it sees that the mount is gone, and closes its descriptor
		}
		x.conn.Close()
		x.discard()
		return err
	}
	s.run(x)
	return nil
}

func (s *Server) newShown(key string, l lazy.Layer) (*shown, error) {
	src, err := newSource(&s.clients, l)
	if err != nil {
		return nil, err
	}
	log := s.log.With("image", l.Image, "layer", l.DiffID.String(), "registry", l.Domain)
	return &shown{
		Layer: l, key: key, source: src, chunks: s.chunks, slots: newSlots(), log: log, memory: share{all: s.tables},
		whole: make(chan struct{}), done: make(chan struct{}),
	}, nil
}

// hold gives a layer to the holder, with what is known of it now.
func (s *Server) hold(x *shown) error {
	data, err := json.Marshal(record{x.Layer, x.greeting, x.unpackedDir(), x.tree.End()})
	if err != nil {
		return err
	}
	return s.holder.Hold(x.key, data, x.conn)
}

// HoldAll gives everything to a new holder.
func (s *Server) HoldAll() {
	for _, x := range s.all() {
		if err := s.hold(x); err != nil {
			s.log.Error("a lazy layer would not survive this process", "layer", x.DiffID.String(), "err", err)
		}
	}
}

// Adopt goes on with a layer that the process before this one gave to the holder.
func (s *Server) Adopt(key string, data []byte, conn *os.File) error {
	var r record
	if err := json.Unmarshal(data, &r); err != nil {
		return err
	}
	x, err := s.newShown(key, r.Layer)
	if err != nil {
		return err
	}
	x.conn, x.greeting = conn, r.Greeting
	x.memory.force = true
	if err := s.resume(x, r); err != nil {
		x.unpacked.close()
		x.discard()
		return fmt.Errorf("layer %s of image %s: %w", r.Layer.DiffID, r.Layer.Image, err)
	}
	s.run(x)
	return nil
}

func (s *Server) resume(x *shown, r record) (err error) {
	ctx, cancel := context.WithTimeout(s.ctx, r.Layer.Timeout)
	defer cancel()
	if r.Unpacked == "" {
		err = x.readTable(ctx, false)
	} else {
		err = x.readUnpackedTable(r)
	}
	if err != nil {
		return err
	}
	x.server, err = show.Resume(x.conn, r.Greeting, x.tree, x)
	return err
}

// run serves a layer until its mount is gone.
func (s *Server) run(x *shown) {
	s.mu.Lock()
	s.layers[x.key] = x
	s.mu.Unlock()
	ctx, cancel := context.WithCancel(s.ctx)
	fetched := make(chan struct{})
	go func() {
		defer close(fetched)
		if x.unpackedDir() != "" {
			close(x.whole)
			return
		}
		x.fillAll(ctx)
	}()
	s.work.Go(func() {
		x.server.Serve()
		cancel()
		<-fetched
		s.mu.Lock()
		delete(s.layers, x.key)
		s.mu.Unlock()
		s.holder.Drop(x.key)
		x.end()
	})
}

func (s *Server) all() []*shown {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Values(s.layers))
}

func (s *Server) find(diffID digest.Digest) (*shown, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var newest *shown
	for key, x := range s.layers {
		if x.DiffID == diffID && (newest == nil || key > newest.key) {
			newest = x
		}
	}
	if newest == nil {
		return nil, fmt.Errorf("%w: %s", lazy.ErrNotShown, diffID)
	}
	return newest, nil
}

// Await returns when a layer's blob is whole. Kinds: lazy.ErrNotShown, also when it has gone
// meanwhile; lazy.ErrInvalid when what the registry has is not the blob.
func (s *Server) Await(ctx context.Context, diffID digest.Digest) error {
	x, err := s.find(diffID)
	if err != nil {
		return err
	}
	select {
	case <-x.whole:
		if errors.Is(x.wrong, context.Canceled) {
			if s.ctx.Err() != nil { // the process after this one will say: the connection is about to break
				<-ctx.Done()
				return ctx.Err()
			}
			return fmt.Errorf("%w: %s", lazy.ErrNotShown, diffID)
		}
		return x.wrong
	case <-x.done:
		return fmt.Errorf("%w: %s", lazy.ErrNotShown, diffID)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Unpacked says where a layer's files are, unpacked; the blob is not needed any more.
func (s *Server) Unpacked(diffID digest.Digest, dir string) error {
	x, err := s.find(diffID)
	if err != nil {
		return err
	}
	if err := x.use(dir); err != nil {
		return err
	}
	if err := s.hold(x); err != nil { // a holder that is gone, and whose successor gets everything
		x.log.Warn("lazy layer is not held yet as one that is unpacked", "err", err)
	}
	return nil
}

// Layers lists what is shown.
func (s *Server) Layers() []digest.Digest {
	var all []digest.Digest
	for _, x := range s.all() {
		all = append(all, x.DiffID)
	}
	slices.Sort(all)
	return slices.Compact(all)
}
