package image

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// copyBuffer is how much of a blob is read and written at once.
const copyBuffer = 128 << 10

// download writes a blob to w while it arrives, and verifies size and digest at the
// end. A connection that breaks or stalls is taken up again where it was (RFC 9110
// range requests), from the next endpoint if one stays broken.
func (src *source) download(ctx context.Context, d ocispec.Descriptor, w io.Writer, m *meter) error {
	h := sha256.New()
	sink := &localWriter{w: io.MultiWriter(w, h)}
	at, breaks, inRow := int64(0), 0, 0
	endpoints := src.endpoints
	for at < d.Size {
		n, err := src.blobFrom(ctx, endpoints[0], d, at, sink, m)
		at += n
		if err == nil {
			break
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if sink.err != nil {
			return fmt.Errorf("store blob %s: %w", d.Digest, sink.err)
		}
		if n > 0 {
			inRow = 0
		}
		inRow++
		breaks++
		again := (isTransient(err) || isRefused(err)) && inRow < blobTries && breaks < blobBreaks
		switch {
		case again:
			if err := pause(ctx, inRow); err != nil {
				return err
			}
		case len(endpoints) > 1:
			endpoints, inRow = endpoints[1:], 0
		default:
			return err
		}
	}
	if at != d.Size {
		return fmt.Errorf("%w: blob %s of %s has %d bytes, its manifest says %d", ErrInvalidImage, d.Digest, src.name, at, d.Size)
	}
	if got := hex.EncodeToString(h.Sum(nil)); got != d.Digest.Encoded() {
		return fmt.Errorf("%w: blob of %s has digest sha256:%s, its manifest says %s", ErrInvalidImage, src.name, got, d.Digest)
	}
	return nil
}

// blobFrom copies what is left of a blob from one endpoint, and returns how much it got.
func (src *source) blobFrom(ctx context.Context, e *endpoint, d ocispec.Descriptor, at int64, w io.Writer, m *meter) (int64, error) {
	header := http.Header{}
	if at > 0 {
		header.Set("Range", "bytes="+strconv.FormatInt(at, 10)+"-"+strconv.FormatInt(d.Size-1, 10))
	}
	resp, err := src.get(ctx, e, "blobs/"+d.Digest.String(), header, d.Size)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	left := d.Size - at
	switch {
	case at > 0 && resp.StatusCode == http.StatusPartialContent:
		if r := resp.Header.Get("Content-Range"); !strings.HasPrefix(r, fmt.Sprintf("bytes %d-", at)) {
			return 0, fmt.Errorf("%w: registry %s sends range %q of blob %s, asked for byte %d on", ErrInvalidImage, e.host, r, d.Digest, at)
		}
	case at > 0: // the whole blob again: pass over what we have
		if _, err := io.CopyN(io.Discard, resp.Body, at); err != nil {
			return 0, src.transportError(ctx, e, err)
		}
	case resp.ContentLength >= 0 && resp.ContentLength != left:
		return 0, fmt.Errorf("%w: registry %s has %d bytes of blob %s, the manifest of %s says %d", ErrInvalidImage, e.host, resp.ContentLength, d.Digest, src.name, left)
	}
	n, err := io.CopyBuffer(&counted{w, m}, io.LimitReader(resp.Body, left), make([]byte, copyBuffer))
	if err == nil && n < left {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return n, src.transportError(ctx, e, err)
	}
	return n, nil
}

// counted reports what is written to a meter.
type counted struct {
	w io.Writer
	m *meter
}

func (c *counted) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	c.m.add(int64(n))
	return n, err
}

// localWriter remembers that it was our side that failed.
type localWriter struct {
	w   io.Writer
	err error
}

var errLocal = errors.New("local write")

func (l *localWriter) Write(p []byte) (int, error) {
	n, err := l.w.Write(p)
	if err != nil {
		l.err = err
		return n, errLocal
	}
	return n, nil
}
