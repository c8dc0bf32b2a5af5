// Package ingest brings layers into an image store: from registries, from other nodes, from
// archives and from files.
//
// An Unpacker fetches a blob, hashes it, unpacks it into the layer store, and keeps the blob if
// blobs are kept. Calls for the same layer share one transfer. What arrives can be read by other
// nodes before it is whole.
package ingest

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/errgroup"

	"github.com/coracle-project/coracle/image/blobs"
	"github.com/coracle-project/coracle/image/crypt"
	"github.com/coracle-project/coracle/image/damage"
	"github.com/coracle-project/coracle/image/lazy"
	"github.com/coracle-project/coracle/image/ledger"
	"github.com/coracle-project/coracle/image/manifest"
	"github.com/coracle-project/coracle/image/peer"
	"github.com/coracle-project/coracle/image/registry"
	"github.com/coracle-project/coracle/image/unpack"
	"github.com/coracle-project/coracle/internal/flight"
)

// layerKey tells apart what is fetched: a blob that should unpack to a diff id. The
// registry is a part of it, so a pull does not wait for a slower registry than its own.
type layerKey struct {
	registry     string
	blob, diffID digest.Digest
}

// Options are what an unpacker needs.
type Options struct {
	Blobs  *blobs.Store
	Ledger *ledger.Ledger
	Layers Layers
	Lazy   shown // nil: none
	Keys   crypt.Keys
	Limits unpack.Limits
	Log    *slog.Logger
}

// shown are the layers that are shown before they are here.
type shown interface {
	// LazySource is the blob that a layer is shown from and not unpacked yet, and the digest of
	// its table of contents; "" if it is not.
	LazySource(diffID digest.Digest) (blob, toc digest.Digest)
}

// Unpacker brings layers into the layer store, and their blobs into blobs if they are kept.
type Unpacker struct {
	Options

	flight   flight.Flight[layerKey, struct{}]
	arrivals arrivals
}

// Origin is where layers come from: a registry, and other nodes that have them from there.
type Origin struct {
	*registry.Repository
	Peers *peer.Pull
}

// New returns an unpacker.
func New(o Options) *Unpacker { return &Unpacker{Options: o} }

// EnsureLayer makes sure that a layer's blob and its unpacked directory are in the
// store. Pulls that need the same layer of a registry at the same time share one download. Each of
// them tells other nodes that it wants the layer, and ends that here.
func (u *Unpacker) EnsureLayer(ctx context.Context, src Origin, d ocispec.Descriptor, diffID digest.Digest, m part) (err error) {
	defer func() { src.Peers.Release(d.Digest, err == nil) }()
	key := layerKey{src.Domain(), d.Digest, diffID}
	for {
		_, joined, err := u.flight.Do(ctx, key, func(ctx context.Context) (struct{}, error) {
			return struct{}{}, u.fetchLayer(ctx, src, d, diffID, m)
		})
		switch {
		case err == nil && joined:
			m.Add(d.Size)
			return nil
		case err != nil && joined && ctx.Err() == nil:
			continue // the other pull's registry or credentials failed: try ours
		}
		return err
	}
}

func (u *Unpacker) fetchLayer(ctx context.Context, src Origin, d ocispec.Descriptor, diffID digest.Digest, m part) error {
	hasBlob, hasLayer := u.Blobs.Has(d), u.Layers.HasLayer(diffID)
	if hasLayer && u.knows(d.Digest, diffID, hasBlob) {
		m.Add(d.Size)
		return nil
	}
	var err error
	if hasBlob {
		release, serr := src.Slot(ctx)
		if serr != nil {
			return serr
		}
		err = u.unpackStored(ctx, d, diffID, hasLayer)
		release()
	}
	switch {
	case errors.Is(err, blobs.ErrRotten):
		u.Log.Warn("layer is fetched again", "blob", d.Digest.String(), "err", err)
		fallthrough
	case !hasBlob:
		err = u.arrive(ctx, src, d, diffID, hasLayer, m)
	default:
		m.Add(d.Size)
	}
	if err != nil {
		return err
	}
	u.Ledger.Learn(d.Digest, diffID)
	return faultPullLayer.At(ctx)
}

// arrive fetches and unpacks a blob: from another node if one has it, or else from the registry.
func (u *Unpacker) arrive(ctx context.Context, src Origin, d ocispec.Descriptor, diffID digest.Digest, hasLayer bool, m part) error {
	_, encrypted := crypt.Encrypted(d.MediaType)
	unpacked := !u.Blobs.Kept && !encrypted
	for {
		node, err := src.Peers.Next(ctx, d.Digest, unpacked)
		if err != nil {
			return err
		}
		if node != nil {
			err := u.fromNode(ctx, node, d, diffID, hasLayer, m)
			if !errors.Is(err, peer.ErrPeer) {
				return err
			}
			u.Log.Debug("layer comes from elsewhere", "blob", d.Digest.String(), "peer", node.String(), "err", err)
			continue
		}
		release, err := src.Slot(ctx)
		if err != nil {
			return err
		}
		ours, err := src.Peers.Claim(ctx, d.Digest, unpacked)
		if ours {
			err = u.fromRegistry(ctx, src.Repository, d, diffID, hasLayer, m)
		}
		release()
		if ours || err != nil {
			return err
		}
	}
}

// fromNode unpacks what another node has. Until a digest says that these are the right bytes, each
// failure is a peer.ErrPeer: with other bytes a node could cause an error of this machine, such as
// a full disk. If it is really one of this machine, the attempt at the registry shows it.
// Kinds: peer.ErrPeer, and those of an image that is invalid from any source.
func (u *Unpacker) fromNode(ctx context.Context, node *peer.Source, d ocispec.Descriptor, diffID digest.Digest,
	hasLayer bool, m part,
) error {
	if !node.Unpacked {
		verified := false
		err := u.unpackArriving(ctx, d, diffID, hasLayer, m, true, func(ctx context.Context, s *spool, got func(int64)) error {
			err := node.Blob(ctx, d, s, got)
			verified = err == nil
			return err
		})
		if err != nil && !verified && ctx.Err() == nil && !errors.Is(err, peer.ErrPeer) {
			return node.GiveUp(err)
		}
		return err
	}
	return u.layerFromNode(ctx, node, d, diffID, hasLayer, m)
}

// fromRegistry unpacks a blob as it arrives, again without the mirrors that were found out to be
// wrong. An image that is itself invalid is not fetched twice.
func (u *Unpacker) fromRegistry(ctx context.Context, src *registry.Repository, d ocispec.Descriptor, diffID digest.Digest,
	hasLayer bool, m part,
) error {
	for {
		before := src.Honest()
		err := u.unpackArriving(ctx, d, diffID, hasLayer, m, src.HasMirrors(), func(ctx context.Context, s *spool, got func(int64)) error {
			return src.Blob(ctx, d, s, got)
		})
		if left := src.Honest(); !errors.Is(err, manifest.ErrInvalid) || left == 0 || left == before {
			return err
		}
	}
}

// knows says that a blob need not be read to know what it unpacks to, and is in the store or
// not to be kept there. What an image claims of a blob is not enough to give it a layer.
func (u *Unpacker) knows(blob, diffID digest.Digest, stored bool) bool {
	return (stored || !u.Blobs.Kept) && u.Ledger.UnpacksTo(blob, diffID)
}

// unpackArriving is the one pass from a registry or node to the layer's directory: the
// blob is hashed and written to ingest/ as it comes, while a second goroutine
// reads behind, decompresses, hashes again and unpacks. Both are committed only
// when both digests are right. With others, the blob may come from elsewhere if its digest is
// wrong.
func (u *Unpacker) unpackArriving(ctx context.Context, d ocispec.Descriptor, diffID digest.Digest, hasLayer bool, m part, others bool,
	fetch func(context.Context, *spool, func(int64)) error,
) (err error) {
	f, err := u.Blobs.Stage()
	if err != nil {
		return fmt.Errorf("store blob %s: %w", d.Digest, err)
	}
	defer os.Remove(f.Name()) // fails once the blob has its name
	defer f.Close()

	spool := newSpool(f)
	defer u.arrivals.add(Incoming{Blob: d.Digest}, spool)()
	g, gctx := errgroup.WithContext(ctx)
	var fetchErr, unpackErr error
	var got atomic.Int64
	g.Go(func() error {
		fetchErr = fetch(gctx, spool, func(n int64) {
			got.Add(n)
			m.Add(n)
		})
		spool.finish(fetchErr)
		return fetchErr
	})
	in, stop := spool.reader(gctx)
	defer stop()
	var w LayerWriter
	g.Go(func() (err error) {
		w, err = u.unpack(gctx, in, d, diffID, hasLayer)
		if others && errors.Is(err, manifest.ErrInvalid) {
			// It is the blob's digest that tells whether the image or a host is to blame.
			unpackErr, err = err, nil
		}
		return err
	})
	if err = g.Wait(); err == nil {
		err = unpackErr
	}
	if w != nil {
		defer w.Abort() // nothing after Commit
	}
	// What the unpacking says of a stream that broke off is only a consequence.
	if fetchErr != nil && !errors.Is(fetchErr, context.Canceled) {
		err = fetchErr
	}
	if err != nil {
		m.Add(-got.Load())
		return err
	}
	if u.Blobs.Kept {
		if err := u.Blobs.Enter(f, d.Digest); err != nil {
			return err
		}
	}
	if w == nil {
		return nil
	}
	return u.commitLayer(ctx, w, diffID)
}

// unpackStored unpacks a blob that is there already. Kinds: blobs.ErrRotten.
func (u *Unpacker) unpackStored(ctx context.Context, d ocispec.Descriptor, diffID digest.Digest, hasLayer bool) error {
	f, err := os.Open(u.Blobs.Path(d.Digest))
	if damage.OfFile(err) {
		return fmt.Errorf("%w: %w", blobs.ErrRotten, err)
	} else if err != nil {
		return err
	}
	defer f.Close()
	err = u.UnpackFile(ctx, f, d, diffID, hasLayer)
	if err == nil || ctx.Err() != nil {
		return err
	}
	// Only its size was looked at so far; its digest tells whether the image or the disk is to
	// blame.
	if rot := blobs.VerifyFile(ctx, f, d.Digest); damage.OfFile(rot) && ctx.Err() == nil {
		return fmt.Errorf("%w: %w", blobs.ErrRotten, rot)
	}
	return err
}

// UnpackFile unpacks a blob.
func (u *Unpacker) UnpackFile(ctx context.Context, f *os.File, d ocispec.Descriptor, diffID digest.Digest, hasLayer bool) error {
	w, err := u.unpack(ctx, f, d, diffID, hasLayer)
	if w != nil {
		defer w.Abort() // nothing after Commit
	}
	if err != nil || w == nil {
		return err
	}
	return u.commitLayer(ctx, w, diffID)
}

// unpack decrypts, decompresses and unpacks a blob into a new layer writer and checks the diff
// id. With only set to verify, nothing is written and the writer is nil. The
// caller commits or aborts the writer, also after an error.
func (u *Unpacker) unpack(ctx context.Context, blob io.Reader, d ocispec.Descriptor, diffID digest.Digest,
	verifyOnly bool,
) (w LayerWriter, err error) {
	defer func() {
		if errors.Is(err, unpack.ErrInvalid) {
			err = fmt.Errorf("%w: layer %s: %w", manifest.ErrInvalid, diffID, err)
		} else if err != nil && ctx.Err() == nil {
			err = fmt.Errorf("unpack layer %s: %w", diffID, err)
		}
	}()
	plain, err := u.Keys.Open(ctx, d, blob)
	if err != nil {
		return nil, err
	}
	z, err := unpack.DecompressSized(ctx, plain, d.Size, u.Limits)
	if err != nil {
		return nil, err
	}
	defer z.Close()
	h := sha256.New()
	out := readAhead(z, h)
	closeOut := sync.OnceFunc(out.close)
	defer closeOut()
	if waits, ok := blob.(interface{ abandon() }); ok {
		defer waits.abandon() // or a stream that brings nothing more would hold us up
	}
	if verifyOnly {
		if _, err := io.Copy(io.Discard, out); err != nil {
			return nil, err
		}
		closeOut() // hashed to the end
		return nil, checkDiffID(h, diffID)
	}
	w, err = u.Layers.NewLayer(ctx)
	if err != nil {
		return nil, err
	}
	if err := u.Blobs.AddDisk(filepath.Dir(w.Dir())); err != nil {
		return w, err
	}
	if err := u.unpackInto(ctx, out, w); err != nil {
		return w, err
	}
	closeOut() // hashed to the end
	return w, checkDiffID(h, diffID)
}

// unpackInto unpacks a layer and writes its recipe.
func (u *Unpacker) unpackInto(ctx context.Context, tar io.Reader, w LayerWriter) error {
	recipe, err := w.Recipe()
	if err != nil {
		return err
	}
	err = unpack.Layer(ctx, tar, unpack.Target{Dir: w.Dir(), Markers: u.Layers.Markers(), Recipe: recipe}, u.Limits)
	return errors.Join(err, recipe.Close())
}

func checkDiffID(h hash.Hash, want digest.Digest) error {
	if got := hex.EncodeToString(h.Sum(nil)); got != want.Encoded() {
		return fmt.Errorf("%w: uncompressed content has digest sha256:%s, its config says %s", unpack.ErrInvalid, got, want)
	}
	return nil
}

// commitLayer gives an unpacked layer its name. One that takes the place of a lazy layer is named
// by images already, and is synced before.
func (u *Unpacker) commitLayer(ctx context.Context, w LayerWriter, diffID digest.Digest) error {
	if u.isShown(diffID) {
		if err := u.Blobs.Sync(); err != nil {
			return err
		}
	}
	defer u.Blobs.Naming()()
	return w.Commit(ctx, diffID)
}

// isShown says whether a layer is shown and not unpacked yet.
func (u *Unpacker) isShown(diffID digest.Digest) bool {
	if u.Lazy == nil {
		return false
	}
	blob, _ := u.Lazy.LazySource(diffID)
	return blob != ""
}

// IsLazy says whether a layer is shown as an image's descriptor wants: from its blob and by its
// table of contents. The table alone decides which files are seen, and until the blob is unpacked
// only the descriptor vouches for it.
func (u *Unpacker) IsLazy(d ocispec.Descriptor, diffID digest.Digest) bool {
	if u.Lazy == nil {
		return false
	}
	blob, toc := u.Lazy.LazySource(diffID)
	return blob != "" && blob == d.Digest && toc != "" && toc.String() == d.Annotations[lazy.TOCAnnotation]
}

// IsWhole says whether all of an image is in the store: its documents as they should be, its layers
// unpacked from these blobs, and the blobs if they are to be kept.
func (u *Unpacker) IsWhole(c *manifest.Content) bool {
	for d, data := range c.Documents {
		if !u.Blobs.Holds(d, data) {
			return false
		}
	}
	for i, l := range c.Layers {
		diffID := c.Image.RootFS.DiffIDs[i]
		if !u.Layers.HasLayer(diffID) || !u.knows(l.Digest, diffID, u.Blobs.Kept && u.Blobs.Has(l)) {
			return false
		}
	}
	return true
}

// Missing are the blobs that a pull of an image has to fetch.
func (u *Unpacker) Missing(c *manifest.Content) (blobs []digest.Digest) {
	for i, l := range c.Layers {
		diffID, stored := c.Image.RootFS.DiffIDs[i], u.Blobs.Has(l)
		if !stored && !(u.Layers.HasLayer(diffID) && u.knows(l.Digest, diffID, false)) {
			blobs = append(blobs, l.Digest)
		}
	}
	return blobs
}

// Load reads an image back from the blobs and checks that all of it is there.
func (u *Unpacker) Load(ctx context.Context, top ocispec.Descriptor) (*manifest.Content, error) {
	data, err := u.Blobs.Read(ctx, top)
	if err != nil {
		return nil, err
	}
	c, err := manifest.Resolve(ctx, top, data, u.Blobs.Read)
	if err != nil {
		return nil, err
	}
	c.Forget()
	for i := range c.Layers {
		if d := c.Image.RootFS.DiffIDs[i]; !u.Layers.HasLayer(d) && !u.IsLazy(c.Layers[i], d) {
			return nil, fmt.Errorf("%w: layer %s is missing", manifest.ErrInvalid, d)
		}
	}
	return c, nil
}

// CanRebuild says whether a layer is here, and its archive is what the blob unpacks to.
func (u *Unpacker) CanRebuild(blob, diffID digest.Digest) bool {
	return !u.isShown(diffID) && u.Layers.HasLayer(diffID) && u.Ledger.UnpacksTo(blob, diffID)
}

// Arriving is what arrives, with its first byte; nil if it does not.
func (u *Unpacker) Arriving(what Incoming) *spool { return u.arrivals.of(what) }
