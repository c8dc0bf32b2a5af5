package registry

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// copyBuffer is how much of a blob is read and written at once.
const copyBuffer = 128 << 10

// File is what a blob is written to while it arrives. The parts of a large blob may arrive
// out of order: Arrived says up to which byte it is whole, never less than before.
type File interface {
	io.WriterAt
	io.ReaderAt
	Arrived(n int64)
}

// Blob writes a blob to f, and verifies size and digest at the end: until it has returned
// nil, what has arrived may be wrong. A connection that breaks or stalls is taken up again
// where it was (RFC 9110 range requests), from the next host if one stays broken. A large
// blob comes over as many connections as there are free slots (see Slot); the caller holds
// one. progress is called with the bytes that came, by several goroutines at the same time.
// Kinds: all, or f's errors.
//
// After ErrInvalid it may be called again with an empty file if there are fewer Honest hosts
// than before, and not none.
func (r *Repository) Blob(ctx context.Context, d ocispec.Descriptor, f File, progress func(int64)) error {
	endpoints, err := r.honest()
	if err != nil {
		return err
	}
	ctx, p := r.patience(ctx)
	defer p.stop()
	t := &transfer{r: r, d: d, f: f, endpoints: endpoints, hash: sha256.New(), got: func(n int64) {
		p.renew()
		progress(n)
	}}
	if err := t.run(ctx); err != nil {
		return p.why(ctx, err)
	}
	if got := hex.EncodeToString(t.hash.Sum(nil)); got != d.Digest.Encoded() {
		for e := range t.senders {
			e.lied.Store(true)
		}
		return fmt.Errorf("%w: blob of %s has digest sha256:%s, its manifest says %s", ErrInvalid, r, got, d.Digest)
	}
	return nil
}

// Honest is how many hosts may have blobs and have sent nothing wrong yet. It never rises.
func (r *Repository) Honest() int {
	n := 0
	for _, e := range r.endpoints {
		if e.Can&Pull != 0 && !e.lied.Load() {
			n++
		}
	}
	return n
}

// honest are the hosts with blobs that have sent nothing wrong; all if none is left.
func (r *Repository) honest() ([]*endpoint, error) {
	all, err := r.able(Pull)
	if err != nil {
		return nil, err
	}
	honest := slices.DeleteFunc(slices.Clone(all), func(e *endpoint) bool { return e.lied.Load() })
	if len(honest) == 0 {
		return all, nil
	}
	return honest, nil
}

// Slot waits until one more blob of the registry may be fetched; release gives it back.
func (r *Repository) Slot(ctx context.Context) (release func(), err error) {
	return r.client.slots.take(ctx, r.domain)
}

// transfer is one blob on its way.
type transfer struct {
	r         *Repository
	d         ocispec.Descriptor
	f         File
	endpoints []*endpoint
	hash      hash.Hash
	got       func(int64)

	mu      sync.Mutex
	senders map[*endpoint]bool // whose bytes are in the file
}

// run brings the blob into the file and the hash.
func (t *transfer) run(ctx context.Context) error {
	if t.d.Size >= parallelMin {
		return t.parallel(ctx)
	}
	return t.fetch(ctx, &span{end: t.d.Size, write: func(at int64, p []byte) error {
		t.hash.Write(p)
		if _, err := t.f.WriteAt(p, at); err != nil {
			return err
		}
		t.f.Arrived(at + int64(len(p)))
		return nil
	}})
}

// span is a part of a blob, from at, which moves, to end.
type span struct {
	at, end int64
	write   func(at int64, p []byte) error
	// answered, if not nil, is told that the first byte is coming, and whether the server
	// sends only what was asked for. It may raise end if it sends all, or refuse that.
	answered func(ranged bool) error
}

// Write takes the bytes that follow.
func (s *span) Write(p []byte) (int, error) {
	if err := s.write(s.at, p); err != nil {
		return 0, &localError{err}
	}
	s.at += int64(len(p))
	return len(p), nil
}

// localError is our side's failure, which no other host fixes.
type localError struct{ err error }

func (e *localError) Error() string { return e.err.Error() }
func (e *localError) Unwrap() error { return e.err }

// fetch brings a span, from one host after the other.
func (t *transfer) fetch(ctx context.Context, s *span) error {
	endpoints, tries := t.endpoints, effort{mark: s.at}
	for s.at < s.end {
		before := s.at
		err := t.once(ctx, endpoints[0], s)
		if err == nil {
			break
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		var local *localError
		if errors.As(err, &local) {
			return fmt.Errorf("store blob %s: %w", t.d.Digest, local.err)
		}
		n := tries.failed(s.at)
		// The next host is a better second try than a mirror that brought nothing.
		again := (isTransient(err) || isRefused(err)) && n < mostTries(t.hasSent(endpoints[0])) &&
			(s.at > before || len(endpoints) == 1)
		switch {
		case again:
			if err := pause(ctx, n, err); err != nil {
				return err
			}
		case len(endpoints) > 1:
			endpoints, tries = endpoints[1:], effort{mark: s.at}
		default:
			return err
		}
	}
	return nil
}

// once copies what is left of a span from one endpoint.
func (t *transfer) once(ctx context.Context, e *endpoint, s *span) error {
	header := http.Header{}
	ranged := s.at > 0 || s.end < t.d.Size
	if ranged {
		header.Set("Range", "bytes="+strconv.FormatInt(s.at, 10)+"-"+strconv.FormatInt(s.end-1, 10))
	}
	size := s.end - s.at
	if s.at == 0 {
		size = t.d.Size // it may be all that comes
	}
	resp, err := t.r.get(ctx, e, "blobs/"+t.d.Digest.String(), header, size)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	partial := ranged && resp.StatusCode == http.StatusPartialContent
	if err := t.check(e, resp, s, partial); err != nil {
		return err
	}
	if s.answered != nil {
		if err := s.answered(partial); err != nil {
			return &localError{err}
		}
	}
	if !partial && s.at > 0 { // the whole blob again: pass over what we have
		if _, err := io.CopyN(io.Discard, resp.Body, s.at); err != nil {
			return t.r.transportError(ctx, e, err)
		}
	}
	left := s.end - s.at
	n, err := io.CopyBuffer(&counted{s, t.got}, io.LimitReader(resp.Body, left), make([]byte, copyBuffer))
	if n > 0 {
		t.sentBy(e)
	}
	if err == nil && n < left {
		err = io.ErrUnexpectedEOF
	}
	var local *localError
	if err == nil || errors.As(err, &local) {
		return err
	}
	return t.r.transportError(ctx, e, err)
}

// sentBy notes who has to answer for the blob.
func (t *transfer) sentBy(e *endpoint) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.senders == nil {
		t.senders = map[*endpoint]bool{}
	}
	t.senders[e] = true
}

func (t *transfer) hasSent(e *endpoint) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.senders[e]
}

// check compares what the registry says that it sends with what was asked for.
func (t *transfer) check(e *endpoint, resp *http.Response, s *span, partial bool) error {
	if partial {
		said := resp.Header.Get("Content-Range")
		first := fmt.Sprintf("bytes %d-", s.at)
		if _, total, _ := strings.Cut(said, "/"); !strings.HasPrefix(said, first) || total != "*" && total != strconv.FormatInt(t.d.Size, 10) {
			return fmt.Errorf("%w: registry %s sends range %q of blob %s, asked for byte %d on of %d", ErrInvalid, e.Host.Host, said, t.d.Digest,
				s.at, t.d.Size)
		}
		return nil
	}
	if resp.ContentLength >= 0 && resp.ContentLength != t.d.Size {
		return fmt.Errorf("%w: registry %s has %d bytes of blob %s, the manifest of %s says %d", ErrInvalid, e.Host.Host, resp.ContentLength,
			t.d.Digest, t.r, t.d.Size)
	}
	return nil
}

// counted tells how many bytes a span has got.
type counted struct {
	s   *span
	got func(int64)
}

func (c *counted) Write(p []byte) (int, error) {
	n, err := c.s.Write(p)
	c.got(int64(n))
	return n, err
}
