package unpack

import (
	"archive/tar"
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"strings"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/internal/safepath"
)

// A recipe is all of a layer's archive that is not in its unpacked files: headers, padding,
// whatever comes after the end. With the files it makes the same archive again, byte for
// byte, so that neither archive nor blob need be kept to save, push or verify a layer. It
// takes some 40 bytes for each file.
//
// # Format
//
// A zstd frame (RFC 8878) that holds the eight bytes "corarec1", and then records. Numbers
// are unsigned varints (encoding/binary).
//
//	0 LENGTH BYTES           bytes of the archive
//	1 LENGTH NAME SIZE       the content of the regular file NAME, SIZE bytes of the archive
//	2                        the end
//	3                        the end of a recipe that cannot be followed: the layer has
//	                         entries that replaced files of its own, or the recipe would
//	                         have become too large
const (
	recipeMagic = "corarec1"

	recordBytes   = 0
	recordFile    = 1
	recordEnd     = 2
	recordUseless = 3
)

// ErrNoRecipe is a recipe that cannot make the archive.
var ErrNoRecipe = errors.New("layer cannot be made into its archive again")

// ErrDamaged is an unpacked layer whose files are not what they were.
var ErrDamaged = errors.New("layer is damaged")

const (
	// maxRecipe bounds what a recipe holds, uncompressed: headers of a million files.
	maxRecipe = 1 << 30
	// recipeChunk is how many bytes are gathered into one record.
	recipeChunk = 32 << 10
	// maxRecipeName is the longest name of a file (PATH_MAX).
	maxRecipeName = 4096
	// recipeWindow bounds the memory of reading and writing; headers repeat sooner.
	recipeWindow = 256 << 10
)

// recorder writes a recipe while an archive is read through it. A nil recorder does nothing
// but read.
type recorder struct {
	r       io.Reader // the archive
	z       *zstd.Encoder
	pending []byte // bytes of the archive not in a record yet
	paused  bool   // what is read is the content of a file that can be read again
	useless bool
	written int64
	room    func(n int64) error // asked after each n bytes
	err     error
}

func newRecorder(r io.Reader, to io.Writer, room func(n int64) error) (*recorder, error) {
	z, err := zstd.NewWriter(to, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1),
		zstd.WithLowerEncoderMem(true), zstd.WithWindowSize(recipeWindow))
	if err != nil {
		return nil, err
	}
	rec := &recorder{r: r, z: z, room: room}
	_, rec.err = z.Write([]byte(recipeMagic))
	return rec, rec.err
}

func (r *recorder) Read(p []byte) (int, error) {
	n, err := r.r.Read(p)
	if r.paused || r.useless {
		return n, err
	}
	r.pending = append(r.pending, p[:n]...)
	if len(r.pending) >= recipeChunk {
		r.flush()
	}
	if err == nil {
		err = r.err
	}
	return n, err
}

// flush writes what is pending as a record.
func (r *recorder) flush() {
	if len(r.pending) > 0 {
		r.record(recordBytes, r.pending)
		r.pending = r.pending[:0]
	}
}

func (r *recorder) record(kind byte, data []byte, numbers ...uint64) {
	if r.useless || r.err != nil {
		return
	}
	head := binary.AppendUvarint([]byte{kind}, uint64(len(data)))
	tail := []byte{}
	for _, n := range numbers {
		tail = binary.AppendUvarint(tail, n)
	}
	n := int64(len(head) + len(data) + len(tail))
	if r.written += n; r.written > maxRecipe {
		r.spoil()
		return
	}
	for _, b := range [][]byte{head, data, tail} {
		if _, err := r.z.Write(b); err != nil {
			r.err = err
			return
		}
	}
	r.err = r.room(n)
}

// content says that the next size bytes are those of the file called name, if that is so.
func (r *recorder) content(name string, h *tar.Header) {
	if r == nil || h.Size == 0 || isSparse(h) {
		return
	}
	r.flush()
	r.record(recordFile, []byte(name), uint64(h.Size))
	r.paused = true
}

// isSparse says that a file's content in the archive is not what it reads as.
func isSparse(h *tar.Header) bool {
	if h.Typeflag == tar.TypeGNUSparse {
		return true
	}
	for key := range h.PAXRecords {
		if strings.HasPrefix(key, "GNU.sparse.") {
			return true
		}
	}
	return false
}

// resume ends content.
func (r *recorder) resume() {
	if r != nil {
		r.paused = false
	}
}

// spoil says that the recipe cannot be followed, because content is gone or too much.
func (r *recorder) spoil() {
	if r != nil {
		r.useless, r.pending = true, nil
	}
}

func (r *recorder) close() error {
	if r == nil {
		return nil
	}
	r.flush()
	end := byte(recordEnd)
	if r.useless {
		end = recordUseless
	}
	_, err := r.z.Write([]byte{end})
	return errors.Join(r.err, err, r.z.Close())
}

// abandon frees what a recorder holds.
func (r *recorder) abandon() {
	if r != nil {
		_ = r.z.Close()
	}
}

// Rebuild writes the archive that a layer was unpacked from: the recipe's bytes, and the
// files' from the unpacked layer at dir. ErrNoRecipe if that is not possible,
// ErrDamaged if files are missing or have another length or the recipe is damaged. That
// all bytes are right only the digest of what was written tells.
func Rebuild(ctx context.Context, recipe io.Reader, dir string, to io.Writer) error {
	root, err := safepath.Open(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	_, err = rebuild(ctx, recipe, root.Strict(), to)
	return err
}

// RebuiltSize returns how many bytes Rebuild writes. Kinds: ErrNoRecipe, and ErrDamaged if the
// recipe is damaged.
func RebuiltSize(ctx context.Context, recipe io.Reader) (int64, error) {
	return rebuild(ctx, recipe, nil, io.Discard)
}

// rebuild follows a recipe. Without a root it does not read the files.
func rebuild(ctx context.Context, recipe io.Reader, root *safepath.Root, to io.Writer) (size int64, err error) {
	z, err := zstd.NewReader(recipe, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(8<<20))
	if err != nil {
		return 0, fmt.Errorf("%w: recipe: %w", ErrDamaged, err)
	}
	defer z.Close()
	b := &rebuilder{
		ctx: ctx, root: root, in: bufio.NewReaderSize(z, recipeChunk), out: bufio.NewWriterSize(to, chunk), buf: make([]byte, chunk),
	}
	if err := b.run(); err != nil {
		return 0, err
	}
	return b.size, b.out.Flush()
}

type rebuilder struct {
	ctx  context.Context
	root *safepath.Root // nil: files are only counted
	in   *bufio.Reader
	out  *bufio.Writer
	buf  []byte
	size int64 // of the archive up to here
}

func (b *rebuilder) run() error {
	magic := make([]byte, len(recipeMagic))
	if _, err := io.ReadFull(b.in, magic); err != nil {
		return b.damaged(err)
	}
	if !bytes.Equal(magic, []byte(recipeMagic)) {
		return fmt.Errorf("%w: recipe begins with %q", ErrDamaged, magic)
	}
	// What a file is damaged by may be the layer itself, which only the end tells.
	var damage error
	for {
		if err := b.ctx.Err(); err != nil {
			return err
		}
		kind, err := b.in.ReadByte()
		if err != nil {
			return b.damaged(err)
		}
		switch kind {
		case recordBytes:
			err = b.bytes()
		case recordFile:
			var name string
			var size int64
			if name, size, err = b.fileRecord(); err == nil && damage == nil && b.root != nil {
				damage = b.file(name, size)
			}
		case recordEnd:
			return damage
		case recordUseless:
			return ErrNoRecipe
		default:
			err = fmt.Errorf("%w: recipe has a record of kind %d", ErrDamaged, kind)
		}
		if err != nil {
			return err
		}
		if damage != nil {
			b.out.Reset(io.Discard)
		}
	}
}

func (b *rebuilder) damaged(err error) error {
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return fmt.Errorf("%w: recipe: %w", ErrDamaged, err)
}

// number reads a number that is at most so large.
func (b *rebuilder) number(most uint64) (int64, error) {
	n, err := binary.ReadUvarint(b.in)
	if err == nil && n > most {
		err = fmt.Errorf("number %d is over %d", n, most)
	}
	if err != nil {
		return 0, b.damaged(err)
	}
	return int64(n), nil
}

func (b *rebuilder) bytes() error {
	n, err := b.number(maxRecipe)
	if err == nil {
		err = b.count(n)
	}
	if err != nil {
		return err
	}
	for n > 0 {
		part := b.buf[:min(n, int64(len(b.buf)))]
		if _, err := io.ReadFull(b.in, part); err != nil {
			return b.damaged(err)
		}
		if _, err := b.out.Write(part); err != nil {
			return err
		}
		n -= int64(len(part))
	}
	return nil
}

func (b *rebuilder) fileRecord() (name string, size int64, err error) {
	n, err := b.number(maxRecipeName)
	if err != nil {
		return "", 0, err
	}
	buf := make([]byte, n)
	if _, err := io.ReadFull(b.in, buf); err != nil {
		return "", 0, b.damaged(err)
	}
	if size, err = b.number(1 << 62); err == nil {
		err = b.count(size)
	}
	return string(buf), size, err
}

// count adds a part to the size of the archive.
func (b *rebuilder) count(n int64) error {
	if b.size > math.MaxInt64-n {
		return fmt.Errorf("%w: recipe: the archive is larger than files can be", ErrDamaged)
	}
	b.size += n
	return nil
}

func (b *rebuilder) file(name string, size int64) error {
	err := b.content(name, size)
	if errors.Is(err, unix.EUCLEAN) || errors.Is(err, unix.EBADMSG) { // what the file system says of itself
		err = fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	if err != nil {
		return fmt.Errorf("layer file %q: %w", name, err)
	}
	return nil
}

// open opens a regular file of the layer and says how large it is. A layer can have a device in the
// place of a file that its recipe names, and that is not opened.
func (b *rebuilder) open(name string) (f *os.File, size int64, err error) {
	found, err := b.root.OpenFile(name, unix.O_PATH|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, 0, err
	}
	defer found.Close()
	fd, st, err := safepath.ReopenRegular(int(found.Fd()), unix.O_RDONLY)
	if err != nil {
		return nil, 0, err
	}
	return os.NewFile(uintptr(fd), name), st.Size, nil
}

func (b *rebuilder) content(name string, size int64) error {
	f, now, err := b.open(name)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) ||
		errors.Is(err, safepath.ErrEscapes) || errors.Is(err, safepath.ErrNotRegular) {
		return fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	if err != nil {
		return err
	}
	defer f.Close()
	if now != size {
		return fmt.Errorf("%w: it has %d bytes, and had %d", ErrDamaged, now, size)
	}
	for left := size; left > 0; {
		if err := b.ctx.Err(); err != nil {
			return err
		}
		n, err := f.Read(b.buf[:min(left, int64(len(b.buf)))])
		if errors.Is(err, io.EOF) {
			return fmt.Errorf("%w: it became shorter", ErrDamaged)
		}
		if err != nil {
			return err
		}
		if _, err := b.out.Write(b.buf[:n]); err != nil {
			return err
		}
		left -= int64(n)
	}
	return nil
}
