package ingest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/coracle-project/coracle/image/manifest"
	"github.com/coracle-project/coracle/image/peer"
	"github.com/coracle-project/coracle/internal/freespace"
)

// ratioFree is how much an archive may be larger than the limits say, for headers and padding.
const ratioFree = 1 << 30

// layerFromNode is fromNode for a node that has the unpacked layer, and sends its archive.
func (u *Unpacker) layerFromNode(ctx context.Context, node *peer.Source, d ocispec.Descriptor, diffID digest.Digest,
	hasLayer bool, m part,
) (err error) {
	lim := u.Limits.WithDefaults()
	body, size, err := node.Layer(ctx, min(lim.MaxBytes, d.Size*lim.MaxRatio)+ratioFree)
	if err != nil {
		return err
	}
	defer body.Close()
	read := &scaled{r: body, m: m, blob: d.Size, archive: size}
	defer func() { read.end(err == nil) }()
	in, pass := io.Reader(read), (*passing)(nil)
	if node.Crowded() && size > 0 && u.Blobs.KeepFree(2*size, lim.MinFree) == nil {
		if pass = u.Pass(read, Incoming{d.Digest, diffID}, size, lim.MinFree); pass != nil {
			in = pass
		}
	}
	defer pass.Close()
	plain := ocispec.Descriptor{MediaType: ocispec.MediaTypeImageLayer, Digest: d.Digest, Size: d.Size}
	w, err := u.unpack(ctx, in, plain, diffID, hasLayer)
	pass.Finish(err)
	if w != nil {
		defer w.Abort() // nothing after Commit
	}
	if errors.Is(err, manifest.ErrInvalid) && !errors.Is(err, peer.ErrPeer) {
		return node.Reject(err)
	}
	if err != nil && ctx.Err() == nil && !errors.Is(err, peer.ErrPeer) {
		return node.GiveUp(err)
	}
	if err != nil || w == nil {
		return err
	}
	return u.commitLayer(ctx, w, diffID)
}

// passing reads a layer's archive, and keeps what it has read for other nodes until the layer is
// unpacked. nil does nothing.
type passing struct {
	r  io.Reader
	s  *spool
	at int64
	// minFree is what stays free on the file system, which is looked at when more than passCheck were
	// written since. Nothing reserves space: other layers may have taken what was there at the start.
	minFree, sinceCheck int64
	log                 *slog.Logger
	end                 func() // no other node finds it any more
	closed              bool
}

// passCheck is how many bytes are written between looks at the free space.
const passCheck = 8 << 20

// Pass returns r with other nodes following; nil if there is no file for that, which is no
// reason to fail: they fetch the layer from elsewhere.
func (u *Unpacker) Pass(r io.Reader, of Incoming, size, minFree int64) *passing {
	f, err := u.Blobs.Stage()
	if err != nil {
		u.Log.Warn("layer is not passed on while it arrives", "blob", of.Blob.String(), "err", err)
		return nil
	}
	s := newSpool(f)
	s.whole = size
	return &passing{r: r, s: s, minFree: minFree, log: u.Log.With("blob", of.Blob.String()), end: u.arrivals.add(of, s)}
}

// Read implements io.Reader. What cannot be kept for other nodes is no reason to fail: they fetch
// the layer from elsewhere.
func (p *passing) Read(b []byte) (int, error) {
	n, err := p.r.Read(b)
	if n > 0 && !p.closed {
		if err := p.keep(b[:n]); err != nil {
			p.log.Warn("layer is not passed on any more while it arrives", "err", err)
			p.s.finish(err)
			p.Close() // the layer needs the space
		}
	}
	return n, err
}

// keep writes what has arrived for those who follow.
func (p *passing) keep(b []byte) error {
	if p.sinceCheck += int64(len(b)); p.sinceCheck >= passCheck {
		p.sinceCheck = 0
		left, err := freespace.Of(p.s.f)
		if err != nil {
			return err
		}
		// What is still to come is written twice: here, and unpacked.
		if err := freespace.Keep(p.s.f.Name(), left, 2*(p.s.whole-p.at), p.minFree); err != nil {
			return err
		}
	}
	if _, err := p.s.WriteAt(b, p.at); err != nil {
		return err
	}
	p.at += int64(len(b))
	p.s.Arrived(p.at)
	return nil
}

// Finish says that all was read, or why not.
func (p *passing) Finish(err error) {
	if p != nil {
		p.s.finish(err)
	}
}

// Close deletes the file. Those who follow have it open.
func (p *passing) Close() {
	if p == nil || p.closed {
		return
	}
	p.closed = true
	p.end()
	_ = os.Remove(p.s.f.Name()) // the next Open removes what remains
	_ = p.s.f.Close()
}

// Copy writes a spool of known size from its start, also what is still to come.
func (s *spool) Copy(ctx context.Context, begin func(size int64) io.Writer) error {
	r, err := s.Follow(ctx)
	if err != nil {
		return fmt.Errorf("%w: %w", peer.ErrNone, err)
	}
	defer r.Close()
	_, err = io.Copy(begin(s.whole), r)
	return err
}
