package ingest

import (
	"context"
	"errors"
	"io"
	"os"
	"sync"
)

// spool is a file that a registry.Repository fills while another goroutine reads behind it. The
// file is the buffer between a registry and the unpacking: neither slows the other,
// and what is read is still in the page cache.
type spool struct {
	f     *os.File
	whole int64 // its size when all is there, if that is known

	mu     sync.Mutex
	more   sync.Cond
	size   int64
	closed bool
	err    error // why it was closed; nil means it is whole
}

func newSpool(f *os.File) *spool {
	s := &spool{f: f}
	s.more.L = &s.mu
	return s
}

// WriteAt writes a part, which readers do not see before Arrived.
func (s *spool) WriteAt(p []byte, off int64) (int, error) { return s.f.WriteAt(p, off) }

// ReadAt reads what was written.
func (s *spool) ReadAt(p []byte, off int64) (int, error) { return s.f.ReadAt(p, off) }

// Arrived says that the first n bytes are there.
func (s *spool) Arrived(n int64) {
	s.mu.Lock()
	s.size = n
	s.mu.Unlock()
	s.more.Broadcast()
}

// begun says whether the first byte is there.
func (s *spool) begun() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.size > 0
}

// finish ends the file: readers get io.EOF after the last byte, or err at once.
func (s *spool) finish(err error) {
	s.mu.Lock()
	if !s.closed {
		s.closed, s.err = true, err
	}
	s.mu.Unlock()
	s.more.Broadcast()
}

// wait blocks until there are bytes after off, and returns how many. The last byte is held back
// until the file is known to be whole: a node that follows must not find out before this node does
// that the bytes of a third one are wrong, and leave this one alone for that. The caller that ends
// ctx must broadcast.
func (s *spool) wait(ctx context.Context, off int64) (int64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		held := int64(1)
		if s.closed {
			held = 0
		}
		switch {
		case ctx.Err() != nil:
			return 0, ctx.Err()
		case s.closed && s.err != nil:
			return 0, s.err
		case s.size-held > off:
			return s.size - held - off, nil
		case s.closed:
			return 0, io.EOF
		}
		s.more.Wait()
	}
}

// reader reads the spool from its start, waiting for what is not there yet. When ctx
// ends, waiting ends; call stop when done with the reader.
func (s *spool) reader(ctx context.Context) (r io.Reader, stop func() bool) {
	stop = context.AfterFunc(ctx, func() { s.finish(ctx.Err()) })
	return &spoolReader{s: s, ctx: context.Background(), f: s.f}, stop
}

type spoolReader struct {
	s   *spool
	ctx context.Context // ends waiting
	f   *os.File        // the spool's, or another of the same file
	off int64
}

func (r *spoolReader) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	n, err := r.s.wait(r.ctx, r.off)
	if err != nil {
		return 0, err
	}
	got, err := r.f.ReadAt(p[:min(n, int64(len(p)))], r.off)
	r.off += int64(got)
	return got, err
}

// Follow opens the spool once more, from its start. Reads end with ctx, and nothing that happens to
// this reader is felt by others.
func (s *spool) Follow(ctx context.Context) (io.ReadCloser, error) {
	f, err := os.Open(s.f.Name())
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.more.Broadcast()
	})
	return &follower{spoolReader{s: s, ctx: ctx, f: f}, stop}, nil
}

// follower is a reader with a file of its own.
type follower struct {
	r    spoolReader
	stop func() bool
}

func (f *follower) Read(p []byte) (int, error) { return f.r.Read(p) }

func (f *follower) Close() error {
	f.stop()
	return f.r.f.Close()
}

// abandon makes reads end, also one that waits.
func (r *spoolReader) abandon() { r.s.finish(errAbandoned) }

// errAbandoned ends the reads of a spool that no one wants to read any more.
var errAbandoned = errors.New("no longer read")
