package unpack

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"sync/atomic"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"

	"github.com/coracle-project/coracle/internal/ctxio"
)

// readAhead is how much is buffered before the decompressor.
const readAhead = 64 << 10

// maxWindow bounds a zstd frame's window, and so the memory of one layer. zstd --ultra -22 uses 128
// MiB.
const maxWindow = 128 << 20

// ratioFree is how much may come out before the ratio is looked at.
const ratioFree = 1 << 30

// Decompress returns the layer's tar stream: gzip, zstd or neither, known by the
// first bytes, because media types in the wild are wrong and the digest of the
// result is checked anyway. Damage of the compressed data is ErrInvalid, too great
// an expansion ErrLimit. Close releases it, not r.
func Decompress(ctx context.Context, r io.Reader, lim Limits) (io.ReadCloser, error) {
	return DecompressSized(ctx, r, 0, lim)
}

// DecompressSized is Decompress of a stream of known size, for which it chooses: igzip, if
// it is installed, for large gzip, and more than one core for large zstd.
func DecompressSized(ctx context.Context, r io.Reader, size int64, lim Limits) (io.ReadCloser, error) {
	in := &counter{r: ctxio.Reader(ctx, r)}
	br := bufio.NewReaderSize(in, readAhead)
	magic, err := br.Peek(4)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	lim = lim.WithDefaults()
	out := &inflated{in: in, maxRatio: lim.MaxRatio, most: lim.MaxBytes + ratioFree}
	switch {
	case bytes.HasPrefix(magic, []byte{0x1f, 0x8b}):
		z, err := inflate(ctx, br, size)
		if err != nil {
			return nil, in.blame(err)
		}
		out.r, out.close = z, z.Close
	case isZstd(magic):
		z, err := zstd.NewReader(br, zstd.WithDecoderMaxWindow(maxWindow), zstd.WithDecoderConcurrency(cores(size)), zstd.WithDecoderLowmem(true))
		if err != nil {
			return nil, in.blame(err)
		}
		out.r, out.close = z, func() error { z.Close(); return nil }
	default:
		out.r, out.close = br, func() error { return nil }
	}
	return out, nil
}

// inflate reads gzip in the fastest way there is.
func inflate(ctx context.Context, r io.Reader, size int64) (io.ReadCloser, error) {
	if path := igzipPath(); path != "" && size >= igzipWorth && os.Geteuid() == 0 {
		if z, err := newIgzip(ctx, path, r); err == nil {
			return z, nil
		}
		// Nothing has been read yet, and what can be done without it is.
	}
	return gzip.NewReader(r)
}

// cores is how many cores zstd may decode one stream on. Its blocks depend on each other, so
// that what goes on at once are stages: more than a few have nothing to do.
func cores(size int64) int {
	if size < 8<<20 {
		return 1
	}
	return min(runtime.GOMAXPROCS(0), 4)
}

// isZstd knows a zstd frame and the skippable frames that may come before one
// (RFC 8878, 3.1).
func isZstd(magic []byte) bool {
	if len(magic) < 4 || magic[3] != 0xfd && magic[3] != 0x18 {
		return false
	}
	return bytes.Equal(magic, []byte{0x28, 0xb5, 0x2f, 0xfd}) ||
		magic[0]&0xf0 == 0x50 && bytes.Equal(magic[1:], []byte{0x2a, 0x4d, 0x18})
}

// counter counts what goes into the decompressor and remembers the stream's own error.
type counter struct {
	r   io.Reader
	n   atomic.Int64 // zstd reads from a goroutine of its own
	err atomic.Pointer[error]
}

func (c *counter) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n.Add(int64(n))
	if err != nil && !errors.Is(err, io.EOF) {
		c.err.CompareAndSwap(nil, &err)
	}
	return n, err
}

// blame tells damaged data from an interrupted stream.
func (c *counter) blame(err error) error {
	if cause := c.err.Load(); cause != nil {
		return *cause
	}
	if errors.Is(err, errDied) {
		return err
	}
	return fmt.Errorf("%w: damaged compressed data: %w", ErrInvalid, err)
}

type inflated struct {
	r        io.Reader
	close    func() error
	in       *counter
	out      int64
	maxRatio int64
	most     int64 // files, and a gigabyte of headers and padding
}

func (i *inflated) Read(p []byte) (int, error) {
	n, err := i.r.Read(p)
	i.out += int64(n)
	if i.out > ratioFree && i.out/i.maxRatio > i.in.n.Load() {
		return 0, fmt.Errorf("%w: %d bytes decompress to more than %d times as much", ErrLimit, i.in.n.Load(), i.maxRatio)
	}
	if i.out > i.most {
		return 0, fmt.Errorf("%w: decompresses to more than %d bytes", ErrLimit, i.most)
	}
	if err != nil && !errors.Is(err, io.EOF) {
		err = i.in.blame(err)
	}
	return n, err
}

func (i *inflated) Close() error { return i.close() }
