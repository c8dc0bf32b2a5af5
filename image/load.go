package image

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/coracle-project/coracle/image/archive"
	"github.com/coracle-project/coracle/image/catalog"
	"github.com/coracle-project/coracle/image/manifest"
	"github.com/coracle-project/coracle/image/reference"
)

// Loaded is what came of an archive.
type Loaded struct {
	Images []Image
	// Notes say, for people, what of the archive was left because it is not for this machine: the
	// first maxNotes, and how many more there are.
	Notes []string

	unsaid int // notes beyond maxNotes
}

// maxNotes is more than anybody reads. An archive may have ten thousand images, and their notes
// have to fit in one answer.
const maxNotes = 100

func (l *Loaded) note(format string, args ...any) {
	if len(l.Notes) == maxNotes {
		l.unsaid++
		return
	}
	l.Notes = append(l.Notes, fmt.Sprintf(format, args...))
}

// endNotes says how many there would be.
func (l *Loaded) endNotes() {
	if l.unsaid > 0 {
		l.Notes = append(l.Notes, fmt.Sprintf("and of %d more images all or some was left", l.unsaid))
	}
}

// Load reads an archive of images (package archive) and brings those for this machine
// into the store. fallback is the name of an image that the archive gives none; a
// bare tag there is put behind it. Kinds: ErrInvalidImage, ErrPlatform (nothing is for this
// machine), ErrInvalidReference.
func (s *Store) Load(ctx context.Context, r io.Reader, fallback string) (Loaded, error) {
	return s.load(ctx, r, fallback, catalog.Archive{})
}

// Preload is Load for images that no collection removes, as long as a file is unchanged: the
// archive, by its absolute path.
func (s *Store) Preload(ctx context.Context, r io.Reader, archive string) (Loaded, error) {
	from, err := catalog.ArchiveOf(archive)
	if err != nil {
		return Loaded{}, fmt.Errorf("load images: %w", err)
	}
	return s.load(ctx, r, "", from)
}

func (s *Store) load(ctx context.Context, r io.Reader, fallback string, from catalog.Archive) (l Loaded, err error) {
	if err := s.calls.begin(); err != nil {
		return l, err
	}
	defer s.calls.done()
	ctx, stop := s.calls.bound(ctx)
	defer stop()
	dir, remove, err := s.adder.scratch.Dir()
	if err != nil {
		return l, err
	}
	defer remove()
	c, err := archive.Read(ctx, r, dir, s.cfg.Layer)
	if err != nil {
		return l, fmt.Errorf("load images: %w", because(ctx, asInvalid(err)))
	}
	ours, err := l.choose(ctx, c)
	if err != nil {
		return l, fmt.Errorf("load images: %w", because(ctx, asInvalid(err)))
	}
	names, err := archiveNames(ours, fallback)
	if err != nil {
		return l, fmt.Errorf("load images: %w", err)
	}
	for i, a := range ours {
		img, err := s.adder.add(ctx, names[i], a.Top, c, from)
		if err != nil {
			return l, fmt.Errorf("load image %s: %w", names[i][0], because(ctx, err))
		}
		l.Images = append(l.Images, img)
	}
	return l, nil
}

// choose finds the images for this machine, and notes the others. Of those not even the documents
// have to be there.
func (l *Loaded) choose(ctx context.Context, c *archive.Contents) (ours []archive.Image, err error) {
	var foreign error
	for _, a := range c.Images {
		err := l.fits(ctx, a, c)
		switch {
		case err == nil:
			ours = append(ours, a)
		case errors.Is(err, manifest.ErrPlatform):
			foreign = cmp.Or(foreign, err)
			l.note("%.200q was left: %v", called(a), err)
		default:
			return nil, fmt.Errorf("%.200q: %w", called(a), err)
		}
	}
	if len(ours) == 0 {
		return nil, foreign
	}
	l.endNotes()
	return ours, nil
}

// fits says why an image of an archive cannot be brought: ErrPlatform, or what is wrong with
// its documents. Of one that can be, it notes the platforms that are left.
func (l *Loaded) fits(ctx context.Context, a archive.Image, c *archive.Contents) error {
	if manifest.PlatformScore(a.Platform) == 0 {
		return fmt.Errorf("%w: it is for %s", manifest.ErrPlatform, manifest.PlatformName(a.Platform))
	}
	data, err := c.Document(ctx, a.Top)
	if err != nil {
		return err
	}
	if _, err := manifest.Resolve(ctx, a.Top, data, c.Document); err != nil {
		return err
	}
	doc, err := manifest.Parse(data, a.Top.MediaType)
	if err != nil {
		return err
	}
	others := slices.DeleteFunc(doc.Manifests, func(m ocispec.Descriptor) bool {
		return manifest.PlatformScore(m.Platform) > 0 || m.Platform.OS == "unknown" // attestations
	})
	if len(others) > 0 {
		l.note("%.200q: what its index offers for %s was left", called(a), manifest.Offered(others))
	}
	return nil
}

// called is how people know an image of an archive. No one has looked at such names yet: they are
// shown in quotes.
func called(a archive.Image) string {
	if len(a.Names) > 0 {
		return a.Names[0]
	}
	return a.Top.Digest.String()
}

// archiveNames decides what each image of an archive is called.
func archiveNames(images []archive.Image, fallback string) ([][]reference.Name, error) {
	all := make([][]reference.Name, len(images))
	fallen := map[reference.Name]bool{}
	for i, img := range images {
		tag := ""
		for _, given := range img.Names {
			if reference.IsTag(given) {
				tag = given
				continue
			}
			n, err := reference.Parse(given)
			if err != nil {
				return nil, fmt.Errorf("%w: the archive names an image %q: %w", ErrInvalidImage, given, err)
			}
			if n.Digest != "" {
				// Whatever the name says: that of a saved image may be an index's, which
				// is not in the archive, and that of a forged one someone else's.
				n.Digest = img.Top.Digest
			}
			all[i] = append(all[i], n)
		}
		if len(all[i]) > 0 {
			continue
		}
		n, err := fallbackName(fallback, tag, img.Top.Digest.String())
		if err != nil {
			return nil, err
		}
		if fallen[n] {
			return nil, fmt.Errorf("%w: the archive has several images without a name, and %q can name one", ErrInvalidReference, fallback)
		}
		fallen[n] = true
		all[i] = []reference.Name{n}
	}
	return all, nil
}

// isTag tells a bare tag (1.36) from a name: names in archives have a tag or a slash.
func fallbackName(fallback, tag, digest string) (reference.Name, error) {
	if fallback == "" {
		if tag != "" {
			tag = fmt.Sprintf(" but the tag %q", tag)
		}
		return reference.Name{}, fmt.Errorf("%w: the archive gives image %s no name%s: say how to name it", ErrInvalidReference, digest, tag)
	}
	return parseTag(reference.WithDefaultTag(fallback, tag))
}
