package image

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/coracle-project/coracle/image/archive"
	"github.com/coracle-project/coracle/image/pack"
)

// ArchiveFormat is a form of archives.
type ArchiveFormat int

// The formats; package archive says what they are.
const (
	OCIArchive ArchiveFormat = iota
	DockerArchive
)

// SaveOptions are the choices of one Save.
type SaveOptions struct {
	Format ArchiveFormat
	// Begin, if not nil, is called before the first byte with about how many come,
	// 0 if that is not known, and with what is not as a user may expect.
	Begin func(bytes int64, notes []string) error
}

// Save writes images, found as by Get, as one archive. One image under several names is
// there once. Kinds: ErrNotFound, ErrInvalidReference.
func (s *Store) Save(ctx context.Context, w io.Writer, refs []string, o SaveOptions) (err error) {
	if err := s.calls.begin(); err != nil {
		return err
	}
	defer s.calls.done()
	ctx, stop := s.calls.bound(ctx)
	defer stop()
	as := pack.AsBlobs
	if o.Format == DockerArchive {
		as = pack.AsTars
	}
	k, err := s.packs.Packer(as, nil)
	if err != nil {
		return err
	}
	defer k.Close()
	var parcels []*pack.Parcel
	defer func() {
		for _, p := range parcels {
			err = errors.Join(err, p.Release())
		}
	}()
	for _, ref := range refs {
		p, err := k.Pack(ctx, ref)
		if err != nil {
			return fmt.Errorf("save image %s: %w", ref, because(ctx, err))
		}
		parcels = append(parcels, p)
	}
	packed, size, notes := together(parcels)
	if as == pack.AsTars {
		size = 0 // that of the unpacked layers is found out while they are written
	}
	if o.Begin != nil {
		if err := o.Begin(size, notes); err != nil {
			return err
		}
	}
	if o.Format == DockerArchive {
		err = archive.WriteDocker(ctx, w, packed)
	} else {
		err = archive.WriteOCI(ctx, w, packed)
	}
	if err != nil {
		return fmt.Errorf("save images: %w", because(ctx, err))
	}
	return nil
}

// together puts names of one image together, and adds up what there is to write.
func together(parcels []*pack.Parcel) (packed []archive.Packed, bytes int64, notes []string) {
	at := map[string]int{}
	seen := map[string]bool{}
	for _, p := range parcels {
		notes = append(notes, p.Notes...)
		key := p.Manifest.Digest.String()
		if i, ok := at[key]; ok {
			packed[i].Names = append(packed[i].Names, p.Names...)
			continue
		}
		at[key] = len(packed)
		packed = append(packed, p.Packed)
		for _, l := range p.Layers {
			if !seen[l.Blob.Digest.String()] {
				seen[l.Blob.Digest.String()] = true
				bytes += l.Blob.Size
			}
		}
	}
	return packed, bytes, notes
}
