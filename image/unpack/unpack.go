// Package unpack writes one image layer, a tar stream, into a directory: in the form
// that overlayfs mounts, or with the markers that the archive has (Markers). It can write
// down how to make the same stream again out of that directory (recipe.go).
//
// The stream is hostile. No entry is followed out of the directory (every path
// goes through internal/safepath, and no file here may call package os with a
// path: a test in safepath sees to it), and size, number of entries
// and free disk space are bounded while it is read.
//
// # Meaning of a layer (image-spec, layer.md)
//
//   - Names are relative; a leading "/" or "./" is dropped, a name that climbs out
//     with ".." is refused, as is one whose parent is a link that leaves the layer.
//   - Of entries with the same name the later wins; a directory keeps what is in it.
//   - A whiteout hides what lower layers have, never what this layer has: a
//     directory that is both whited out and present becomes opaque.
//   - Missing parents are made with mode 0755.
//   - Names are at most as long as the kernel's paths, and time to find them is bounded (Limits).
//   - Hard links must point at an earlier entry of the same layer.
//   - Of extended attributes, security.capability and user.* are kept. The rest
//     is dropped: trusted.overlay.* would let a layer rewrite the mount.
package unpack

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/coracle-project/coracle/internal/ctxio"
	"github.com/coracle-project/coracle/internal/safepath"
)

// Kinds of error, for errors.Is. Others are the system's (no space left, …) or the
// reader's own.
var (
	// ErrInvalid says that the layer itself is wrong.
	ErrInvalid = errors.New("invalid layer")
	// ErrLimit says that the layer is larger than the limits; it is an ErrInvalid too.
	ErrLimit = fmt.Errorf("%w: over the limit", ErrInvalid)
)

// Limits bound one layer. A zero field means its default.
type Limits struct {
	// MaxBytes is the most that the files of a layer may hold. Default 64 GiB.
	MaxBytes int64
	// MaxEntries is the most entries that a layer may have. Default 2 million.
	MaxEntries int64
	// MaxRatio is the most that decompression may multiply the size, once a
	// gigabyte came out. Default 1100: gzip cannot reach it, a zstd bomb does.
	MaxRatio int64
	// MinFree is how much space unpacking leaves free on the file system, so
	// that a layer cannot take the node down. Default 128 MiB.
	MinFree int64
	// MaxDepth is how many levels directories may nest. Default 1365: the path of a deeper one is
	// longer than paths can be, with names of two letters. Links in the layer reach deeper.
	MaxDepth int64
	// MaxLookups limits the names that the kernel may have to look up, at worst, to follow the
	// links of the layer itself. Default 2 billion, which takes some minutes. Without a limit, each
	// entry could go through 40 links of a thousand names each, and the layer would take ten
	// thousand times as long to unpack as others of its size.
	MaxLookups int64
}

// WithDefaults returns the limits with defaults filled in.
func (l Limits) WithDefaults() Limits {
	set := func(v *int64, d int64) {
		if *v == 0 {
			*v = d
		}
	}
	set(&l.MaxBytes, 64<<30)
	set(&l.MaxEntries, 2<<20)
	set(&l.MaxRatio, 1100)
	set(&l.MinFree, 128<<20)
	set(&l.MaxDepth, 1365)
	set(&l.MaxLookups, 2e9)
	return l
}

// Target is where a layer is unpacked.
type Target struct {
	Dir     string // must be empty
	Markers Markers
	// Recipe, if not nil, gets what Rebuild needs besides the directory.
	Recipe io.Writer
}

// Layer reads an uncompressed layer to its end and writes it into a target. It stops at the first
// error and leaves what it wrote to the caller. Data after the end of the archive is read and
// ignored, since it counts for the digest.
func Layer(ctx context.Context, r io.Reader, to Target, lim Limits) error {
	root, err := safepath.Open(to.Dir)
	if err != nil {
		return err
	}
	defer root.Close()
	u := &unpacker{
		ctx:       ctx,
		root:      root.Strict(),
		lim:       lim.WithDefaults(),
		markers:   to.Markers,
		buf:       make([]byte, chunk),
		whiteouts: map[string]struct{}{},
		times:     map[string]dirTimes{},
	}
	defer u.forgetParent()
	if to.Recipe != nil {
		if u.recipe, err = newRecorder(r, to.Recipe, u.checkFree); err != nil {
			return fmt.Errorf("write recipe: %w", err)
		}
		r = u.recipe
	}
	if err := u.run(r); err != nil {
		u.recipe.abandon()
		return err
	}
	if err := u.recipe.close(); err != nil {
		return fmt.Errorf("write recipe: %w", err)
	}
	return nil
}

// unpacker is the state of one layer being written. It is used by one goroutine.
type unpacker struct {
	ctx  context.Context // of the one call to Layer
	root *safepath.Root  // strict
	lim  Limits
	buf  []byte

	markers Markers
	recipe  *recorder // nil without

	// The directory of the last entry, kept open: most entries are siblings.
	parent     *safepath.Dir
	parentName string

	entries, written, sinceCheck int64

	longest, lookups int64 // names in the target of a link, at most, and what following links took

	whiteouts map[string]struct{} // names made into whiteouts by this layer
	times     map[string]dirTimes // set last: writing into a directory changes them
	held      int64               // bytes of names in the two maps
}

// dirTimes are a directory's times, and its inode to know it again.
type dirTimes struct {
	ino          uint64
	atime, mtime time.Time
}

func (u *unpacker) run(r io.Reader) error {
	if err := u.prepareRoot(); err != nil {
		return err
	}
	tr := tar.NewReader(r)
	for {
		if err := u.ctx.Err(); err != nil {
			return err
		}
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		// ErrInsecurePath is a warning that depends on GODEBUG; names are
		// checked below in any case.
		if err != nil && !errors.Is(err, tar.ErrInsecurePath) {
			return archiveError(err)
		}
		if u.entries++; u.entries > u.lim.MaxEntries {
			return fmt.Errorf("%w: more than %d entries", ErrLimit, u.lim.MaxEntries)
		}
		if err := u.checkFree(besides(h)); err != nil {
			return err
		}
		if err := u.entry(h, tr); err != nil {
			return fmt.Errorf("layer entry %.200q: %w", h.Name, kind(err))
		}
	}
	if err := u.setTimes(); err != nil {
		return err
	}
	_, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, ctxio.Reader(u.ctx, r), u.buf)
	return err
}

// maxHeld bounds the memory of the names that are kept until the end.
const maxHeld = 128 << 20

// hold counts a name that is kept.
func (u *unpacker) hold(name string) error {
	if u.held += int64(len(name)) + 64; u.held > maxHeld {
		return fmt.Errorf("%w: names of directories and whiteouts take more than %d bytes", ErrLimit, maxHeld)
	}
	return nil
}

// prepareRoot gives the layer's root directory what a layer without an entry for
// it should have.
func (u *unpacker) prepareRoot() error {
	d, err := u.root.OpenDir("")
	if err != nil {
		return err
	}
	defer d.Close()
	return d.SetMode(0o755)
}
