package image

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/coracle-project/coracle/image/blobs"
	"github.com/coracle-project/coracle/image/catalog"
	"github.com/coracle-project/coracle/image/damage"
	"github.com/coracle-project/coracle/image/garbage"
	"github.com/coracle-project/coracle/image/unpack"
)

// Repair is what Verify does about damage.
type Repair int

// The ways to repair.
const (
	// ReportDamage changes nothing.
	ReportDamage Repair = iota
	// DropDamaged takes what is damaged out of use, and with it the images that need
	// it. Containers that run from them go on.
	DropDamaged
	// RefetchDamaged does that, and pulls the images again: only what was damaged is
	// fetched.
	RefetchDamaged
)

// VerifyOptions are the choices of one Verify.
type VerifyOptions struct {
	Images []string // found as by Get; all if empty
	Repair Repair
	// Auth is for pulling again, from the one registry that all the images are of.
	Auth Auth
	// Progress, if not nil, is called before each thing is read.
	Progress func(kind string, d digest.Digest)
}

// Damage is one thing that is not what its digest says.
type Damage struct {
	Kind   string // "document", "blob", "layer" or "copy"
	Digest digest.Digest
	Images []string // names of the images that need it, sorted
	Cause  error
}

// Verified is what Verify has found.
type Verified struct {
	Documents, Blobs, Layers int // read and found right
	Damaged                  []Damage
	// Unverifiable are layers that are there and cannot be made into their archives
	// again (unpack.ErrNoRecipe), and whose blobs are not kept; and lazy ones, which are
	// compared with their digests as they come.
	Unverifiable []digest.Digest
	// Refetched are the names of images that were pulled again, Dropped those that
	// are gone, with why they could not be, if that was tried.
	Refetched []string
	Dropped   map[string]error
}

// Verify reads all that images consist of, and compares it with its digests: documents
// and blobs as they are, unpacked layers and their copies by making their archives again. Pulls and
// containers go on meanwhile. An error is one of reading; damage is in the result.
func (s *Store) Verify(ctx context.Context, o VerifyOptions) (Verified, error) {
	if err := s.calls.begin(); err != nil {
		return Verified{}, err
	}
	defer s.calls.done()
	ctx, stop := s.calls.bound(ctx)
	defer stop()
	v := &verifier{s: s, o: o, seen: map[thing]error{}, need: map[thing][]catalog.Entry{}, result: Verified{Dropped: map[string]error{}}}
	entries, err := v.entries()
	if err == nil {
		err = o.oneRegistry(entries)
	}
	if err != nil {
		return Verified{}, err
	}
	for _, e := range entries {
		if err := v.image(ctx, e); err != nil {
			return v.result, fmt.Errorf("verify image %s: %w", e.Name, because(ctx, err))
		}
	}
	if o.Repair != ReportDamage && len(v.result.Damaged) > 0 {
		if err := v.repair(ctx); err != nil {
			return v.result, fmt.Errorf("repair images: %w", because(ctx, err))
		}
	}
	return v.result, nil
}

type verifier struct {
	s      *Store
	o      VerifyOptions
	seen   map[thing]error           // what has been read: nil, or how it is damaged
	need   map[thing][]catalog.Entry // of what is damaged: the images, as they were read
	result Verified
}

// thing is one thing that is read. A layer that is not packed has the digest of its blob.
type thing struct {
	kind   string
	digest digest.Digest
}

func (v *verifier) entries() ([]catalog.Entry, error) {
	now := v.s.index.Present()
	if len(v.o.Images) == 0 {
		return now.Entries, nil
	}
	var all []catalog.Entry
	for _, ref := range v.o.Images {
		e, err := now.Entry(ref)
		if err != nil {
			return nil, err
		}
		all = append(all, e)
	}
	return all, nil
}

// oneRegistry fails if credentials could go to a registry that they are not meant for.
func (o VerifyOptions) oneRegistry(entries []catalog.Entry) error {
	if o.Repair != RefetchDamaged || o.Auth == (Auth{}) {
		return nil
	}
	var domains []string
	for _, e := range entries {
		domains = append(domains, e.Name.Domain)
	}
	slices.Sort(domains)
	if domains = slices.Compact(domains); len(domains) > 1 {
		return fmt.Errorf("repair images: the credentials are for one registry, and the images are of %s: name the images of one registry",
			strings.Join(domains, ", "))
	}
	return nil
}

// image reads all of one image, which cannot be collected meanwhile. One that was removed before is
// not damaged, nor is one whose name has moved to another image since.
func (v *verifier) image(ctx context.Context, e catalog.Entry) error {
	pins := append(e.Blobs(), e.Image.RootFS.DiffIDs...)
	if err := v.s.garbage.Pin(ctx, pins); err != nil {
		return err
	}
	var err error
	now := v.s.index.Present().Entries
	if i := slices.IndexFunc(now, e.IsStill); i >= 0 {
		err = v.read(ctx, now[i])
	}
	return errors.Join(err, v.s.garbage.Settle(ctx, pins, true))
}

func (v *verifier) read(ctx context.Context, e catalog.Entry) error {
	for d := range e.Documents {
		err := v.check(e, "document", d, func() error { return v.file(ctx, d) })
		if err != nil {
			return err
		}
	}
	for i, l := range e.Layers {
		if v.s.blobs.Exists(l.Digest) {
			if err := v.check(e, "blob", l.Digest, func() error { return v.blob(ctx, l) }); err != nil {
				return err
			}
		}
		diffID := e.Image.RootFS.DiffIDs[i]
		if err := v.check(e, "layer", diffID, func() error { return v.layer(ctx, diffID) }); err != nil {
			return err
		}
		if err := v.copies(ctx, e, diffID); err != nil {
			return err
		}
	}
	return nil
}

// copies reads the copies of a layer that is itself whole, and can be compared.
func (v *verifier) copies(ctx context.Context, e catalog.Entry, d digest.Digest) error {
	k := v.s.cfg.Layers
	if !k.HasCopy(d) || v.seen[thing{"layer", d}] != nil || slices.Contains(v.result.Unverifiable, d) {
		return nil
	}
	return v.check(e, "copy", d, func() error { return k.CheckCopies(ctx, d) })
}

// check reads one thing, once, and notes the damage.
func (v *verifier) check(e catalog.Entry, kind string, d digest.Digest, read func() error) error {
	damage, seen := v.seen[thing{kind, d}]
	if !seen {
		if v.o.Progress != nil {
			v.o.Progress(kind, d)
		}
		err := read()
		if err != nil && !isDamage(err) {
			return err
		}
		damage = err
		v.seen[thing{kind, d}] = damage
		if damage == nil {
			v.count(kind)
		}
	}
	if damage == nil {
		return nil
	}
	i := slices.IndexFunc(v.result.Damaged, func(x Damage) bool { return x.Kind == kind && x.Digest == d })
	if i < 0 {
		i = len(v.result.Damaged)
		v.result.Damaged = append(v.result.Damaged, Damage{Kind: kind, Digest: d, Cause: damage})
	}
	names := &v.result.Damaged[i].Images
	if at, there := slices.BinarySearch(*names, e.Name.String()); !there {
		*names = slices.Insert(*names, at, e.Name.String())
		v.need[thing{kind, d}] = append(v.need[thing{kind, d}], e)
	}
	return nil
}

func (v *verifier) count(kind string) {
	switch kind {
	case "document":
		v.result.Documents++
	case "blob":
		v.result.Blobs++
	case "layer":
		v.result.Layers++
	}
}

func isDamage(err error) bool {
	return errors.Is(err, ErrInvalidImage) || errors.Is(err, unpack.ErrDamaged) || errors.Is(err, fs.ErrNotExist) || damage.OfDisk(err)
}

func (v *verifier) blob(ctx context.Context, d ocispec.Descriptor) error {
	if !v.s.blobs.Has(d) {
		return fmt.Errorf("%w: its size is not the %d bytes that the manifest says", ErrInvalidImage, d.Size)
	}
	return v.file(ctx, d.Digest)
}

func (v *verifier) file(ctx context.Context, d digest.Digest) error {
	f, err := os.Open(v.s.blobs.Path(d))
	if err != nil {
		return err
	}
	defer f.Close()
	return blobs.VerifyFile(ctx, f, d)
}

func (v *verifier) layer(ctx context.Context, d digest.Digest) error {
	if v.s.cfg.Lazy != nil {
		if blob, _ := v.s.cfg.Lazy.LazySource(d); blob != "" {
			v.result.Unverifiable = append(v.result.Unverifiable, d)
			return nil
		}
	}
	if !v.s.cfg.Layers.HasLayer(d) {
		return fmt.Errorf("layer: %w", fs.ErrNotExist)
	}
	err := v.s.packs.Rebuild(ctx, d, io.Discard)
	if errors.Is(err, unpack.ErrNoRecipe) {
		v.result.Unverifiable = append(v.result.Unverifiable, d)
		return nil
	}
	return err
}

// repair takes what is damaged out of use, then the images that need it, and then pulls
// those again.
func (v *verifier) repair(ctx context.Context) error {
	var lost []catalog.Entry
	for _, d := range v.result.Damaged {
		if err := v.remove(ctx, d); err != nil {
			return err
		}
		// What is kept needlessly, or can be made again, can be damaged without harm to the image.
		if d.Kind != "blob" && d.Kind != "copy" {
			lost = append(lost, v.need[thing{d.Kind, d.Digest}]...)
		}
	}
	if err := faultVerifyRemoved.At(ctx); err != nil {
		return err
	}
	var dropped []string
	drop := func(e catalog.Entry) bool {
		is := slices.ContainsFunc(lost, func(read catalog.Entry) bool { return read.IsStill(e) })
		if is {
			dropped = append(dropped, e.Name.String())
		}
		return is
	}
	if err := errors.Join(v.s.garbage.Salvage(), v.s.index.Drop(drop)); err != nil {
		return err
	}
	err := v.refetch(ctx, dropped)
	// What the images alone needed is garbage, whatever has become of them.
	return errors.Join(err, v.s.garbage.Settle(ctx, nil, true))
}

// refetch pulls images again that were dropped, if that was asked for.
func (v *verifier) refetch(ctx context.Context, dropped []string) error {
	if err := faultVerifyDropped.At(ctx); err != nil {
		return err
	}
	for _, name := range dropped {
		if v.o.Repair != RefetchDamaged {
			v.result.Dropped[name] = nil
			continue
		}
		if _, err := v.s.Pull(ctx, name, PullOptions{Auth: v.o.Auth}); err != nil {
			v.result.Dropped[name] = err
			continue
		}
		v.result.Refetched = append(v.result.Refetched, name)
	}
	slices.Sort(v.result.Refetched)
	return v.s.Release(ctx, garbage.SalvageLease)
}

// remove takes one damaged thing out of use.
func (v *verifier) remove(ctx context.Context, d Damage) error {
	switch d.Kind {
	case "copy":
		return v.s.cfg.Layers.DropCopies(d.Digest)
	case "layer":
		return v.s.cfg.Layers.Quarantine(d.Digest)
	}
	return v.s.garbage.DropBlob(ctx, d.Digest)
}
