package archive

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/coracle-project/coracle/image/unpack"
	"github.com/coracle-project/coracle/internal/boundedjson"
	"github.com/coracle-project/coracle/internal/freespace"
)

// Contents are the images of an archive that was read.
type Contents struct {
	Images []Image

	dir   string // where the files are
	files map[string]*file
	// byDigest are the files by their content, and documents that were made for
	// images that had none.
	byDigest map[digest.Digest]*file
	made     map[digest.Digest][]byte
}

// file is an entry of the archive.
type file struct {
	path   string // on disk; "" for a link
	link   string // name of another entry
	digest digest.Digest
	size   int64
}

// Read reads an archive, packed with gzip or zstd or not at all, into the directory,
// which must be empty. On error nothing of it is left there. Of the limits, MaxBytes,
// MaxRatio and MinFree are looked at.
func Read(ctx context.Context, r io.Reader, dir string, lim unpack.Limits) (*Contents, error) {
	c := &Contents{dir: dir, files: map[string]*file{}, byDigest: map[digest.Digest]*file{}, made: map[digest.Digest][]byte{}}
	err := c.read(ctx, r, lim.WithDefaults())
	if err == nil {
		err = c.understand()
	}
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// Close deletes the files.
func (c *Contents) Close() error {
	entries, err := os.ReadDir(c.dir)
	for _, e := range entries {
		err = errors.Join(err, os.Remove(filepath.Join(c.dir, e.Name())))
	}
	return err
}

func (c *Contents) read(ctx context.Context, r io.Reader, lim unpack.Limits) error {
	z, err := unpack.Decompress(ctx, r, lim)
	if err != nil {
		return damaged(err)
	}
	defer z.Close()
	in := &staging{c: c, tr: tar.NewReader(z), left: lim.MaxBytes, minFree: lim.MinFree}
	for {
		h, err := in.tr.Next()
		if errors.Is(err, io.EOF) {
			// What follows the end has to be read, too: otherwise a pipe's writer
			// would be killed, and the checksum of a packed archive comes last.
			_, err := io.Copy(io.Discard, z)
			return damaged(err)
		}
		if err != nil && !errors.Is(err, tar.ErrInsecurePath) {
			return damaged(err)
		}
		if err := in.entry(h); err != nil {
			return err
		}
	}
}

// damaged makes ErrInvalid of what the archive's form is to blame for.
func damaged(err error) error {
	if errors.Is(err, unpack.ErrInvalid) || errors.Is(err, tar.ErrHeader) || errors.Is(err, tar.ErrFieldTooLong) ||
		errors.Is(err, io.ErrUnexpectedEOF) {
		return invalid("it is cut off, or no tar archive: %w", err)
	}
	return err
}

// staging is the state of reading.
type staging struct {
	c       *Contents
	tr      *tar.Reader
	left    int64 // bytes that may still come
	minFree int64
	entries int
	names   int
}

func (in *staging) entry(h *tar.Header) error {
	if in.entries++; in.entries > maxEntries {
		return invalid("it has more than %d entries", maxEntries)
	}
	name, err := entryName(h.Name)
	if err != nil {
		return err
	}
	if in.names += len(name) + len(h.Linkname); in.names > maxNames {
		return invalid("the names of its entries take more than %d bytes", maxNames)
	}
	switch h.Typeflag {
	case tar.TypeDir:
		return nil
	case tar.TypeReg:
		return in.file(name, h.Size)
	case tar.TypeSymlink, tar.TypeLink:
		// Old versions of docker save write a layer once and link to it.
		to := h.Linkname
		if h.Typeflag == tar.TypeSymlink && !path.IsAbs(to) {
			to = path.Join(path.Dir(name), to)
		}
		if to, err = entryName(to); err != nil {
			return err
		}
		return in.keep(name, &file{link: to})
	}
	return invalid("entry %q is of type %q; only files, directories and links belong there", h.Name, h.Typeflag)
}

// entryName cleans a name; one that leads out of the archive is refused, though no name
// is ever used as a path: only an attacker writes it.
func entryName(name string) (string, error) {
	clean := path.Clean("./" + name)
	if clean == ".." || strings.HasPrefix(clean, "../") {
		return "", invalid("entry %q leads out of the archive", name)
	}
	return clean, nil
}

// file stores one entry's bytes.
func (in *staging) file(name string, size int64) error {
	if in.left -= size; in.left < 0 {
		return invalid("its files take more bytes than the limit")
	}
	if err := in.room(size); err != nil {
		return err
	}
	f, err := os.OpenFile(filepath.Join(in.c.dir, strconv.Itoa(in.entries)), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	h := sha256.New()
	n, err := io.Copy(io.MultiWriter(f, h), in.tr)
	if err = errors.Join(damaged(err), f.Close()); err != nil {
		return err
	}
	d := digest.NewDigest(digest.SHA256, h)
	if want, ok := strings.CutPrefix(name, ocispec.ImageBlobsDir+"/sha256/"); ok && want != d.Encoded() {
		return invalid("blob %s has digest %s", name, d)
	}
	return in.keep(name, &file{path: f.Name(), digest: d, size: n})
}

// room sees to it that an archive does not fill the disk.
func (in *staging) room(size int64) error {
	left, err := freespace.At(in.c.dir)
	if err != nil {
		return err
	}
	return freespace.Keep(in.c.dir, left, size, in.minFree)
}

// keep enters a file. Twice the same name with different content is an archive that two
// readers understand differently.
func (in *staging) keep(name string, f *file) error {
	if old := in.c.files[name]; old != nil {
		if old.digest != f.digest || old.link != f.link {
			return invalid("it has two different entries %q", name)
		}
		if f.path != "" {
			return os.Remove(f.path)
		}
		return nil
	}
	in.c.files[name] = f
	if f.path != "" && in.c.byDigest[f.digest] == nil {
		in.c.byDigest[f.digest] = f
	}
	return nil
}

// named finds an entry, following links.
func (c *Contents) named(name string) (*file, error) {
	clean, err := entryName(name)
	if err != nil {
		return nil, err
	}
	f := c.files[clean]
	for range maxLinks {
		if f == nil {
			return nil, invalid("it has no entry %q", name)
		}
		if f.link == "" {
			return f, nil
		}
		f = c.files[f.link]
	}
	return nil, invalid("entry %q is a link to a link to a link", name)
}

// document reads a small file.
func (f *file) document(limit int64) ([]byte, error) {
	if f.size > limit {
		return nil, invalid("%s has %d bytes, at most %d are read", f.digest, f.size, limit)
	}
	return os.ReadFile(f.path)
}

// parse reads a named JSON file.
func (c *Contents) parse(name string, into any) error {
	f, err := c.named(name)
	if err != nil {
		return err
	}
	data, err := f.document(maxDocument)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	if err := boundedjson.Unmarshal(data, into); err != nil {
		return invalid("%s: %w", name, err)
	}
	return nil
}

// Document returns a manifest, index or configuration, whose digest and size are right.
func (c *Contents) Document(_ context.Context, d ocispec.Descriptor) ([]byte, error) {
	if data, ok := c.made[d.Digest]; ok {
		return data, nil
	}
	f, err := c.blob(d)
	if err != nil {
		return nil, err
	}
	return f.document(maxConfig)
}

// Open opens a blob for reading. The caller closes it.
func (c *Contents) Open(d ocispec.Descriptor) (*os.File, error) {
	f, err := c.blob(d)
	if err != nil {
		return nil, err
	}
	return os.Open(f.path)
}

func (c *Contents) blob(d ocispec.Descriptor) (*file, error) {
	f := c.byDigest[d.Digest]
	switch {
	case f == nil:
		return nil, invalid("blob %s is missing: %w", d.Digest, fs.ErrNotExist)
	case f.size != d.Size:
		return nil, invalid("blob %s has %d bytes, its descriptor says %d", d.Digest, f.size, d.Size)
	}
	return f, nil
}
