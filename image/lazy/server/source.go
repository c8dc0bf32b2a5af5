package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/image/lazy"
	"github.com/coracle-project/coracle/image/registry"
)

// source is where a blob's bytes come from: its file, where what has come is kept at its place and
// the rest are holes, and the registry. What the file has may be wrong, since a crash leaves halves
// of writes: its readers compare digests.
type source struct {
	layer  lazy.Layer
	client *sharedClient

	mu   sync.Mutex
	repo *registry.Repository // keeps tokens, and which hosts are down; nil after an error
	file *os.File             // nil when it is not needed any more, or cannot be opened
}

func newSource(c *clients, l lazy.Layer) (*source, error) {
	client, err := c.get(l.Hosts)
	if err != nil {
		return nil, err
	}
	return &source{layer: l, client: client}, nil
}

// open opens the file, or makes it if create is set.
func (s *source) open(create bool) error {
	flags := os.O_RDWR
	if create {
		flags |= os.O_CREATE
	}
	f, err := os.OpenFile(filepath.Join(s.layer.Dir, lazy.Blob), flags, 0o600)
	if errors.Is(err, fs.ErrNotExist) && !create {
		return nil // unpacked and gone, which we shall be told
	}
	if err != nil {
		return fmt.Errorf("keep blob %s: %w", s.layer.Blob, err)
	}
	if err := f.Truncate(s.layer.Size); err != nil {
		return errors.Join(fmt.Errorf("keep blob %s: %w", s.layer.Blob, err), f.Close())
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.file = f
	return nil
}

// drop lets go of the file.
func (s *source) drop() {
	s.mu.Lock()
	f := s.file
	s.file = nil
	s.mu.Unlock()
	if f != nil {
		f.Close() // waits for who reads or writes it
	}
}

func (s *source) close() {
	s.drop()
	s.client.release()
}

func (s *source) kept() *os.File {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.file
}

func (s *source) descriptor() ocispec.Descriptor {
	return ocispec.Descriptor{Digest: s.layer.Blob, Size: s.layer.Size}
}

// local reads bytes that the file has; nil if it does not have all of them.
func (s *source) local(at, n int64) []byte {
	f := s.kept()
	if f == nil || !covered(f, at, n) {
		return nil
	}
	buf := make([]byte, n)
	if _, err := f.ReadAt(buf, at); err != nil {
		return nil
	}
	return buf
}

// covered says that a file has no hole within n bytes. A page of which something was written is
// none, though the rest of it be zeros.
func covered(f *os.File, at, n int64) bool {
	hole, err := f.Seek(at, unix.SEEK_HOLE)
	return err == nil && hole >= at+n
}

// remote fetches bytes that check accepts, and keeps them. Without room for them they are only
// returned.
func (s *source) remote(ctx context.Context, at, n int64, check func([]byte) error) ([]byte, error) {
	repo, err := s.repository()
	if err != nil {
		return nil, err
	}
	data, err := repo.Range(ctx, s.descriptor(), at, n, check)
	if err != nil {
		s.forget(repo)
		return nil, err
	}
	if f := s.kept(); f != nil {
		_, _ = f.WriteAt(data, at)
	}
	return data, nil
}

func (s *source) repository() (*registry.Repository, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.repo != nil {
		return s.repo, nil
	}
	r, err := s.client.Repository(s.layer.Domain, s.layer.Path, s.layer.Auth)
	s.repo = r
	return r, err
}

// slot waits for a turn at the registry; release gives it back.
func (s *source) slot(ctx context.Context) (repo *registry.Repository, release func(), err error) {
	if repo, err = s.repository(); err != nil {
		return nil, nil, err
	}
	release, err = repo.Slot(ctx)
	return repo, release, err
}

// forget has the next request begin again: with other hosts, if their settings have changed.
func (s *source) forget(r *registry.Repository) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.repo == r {
		s.repo = nil
	}
}

// reader reads the blob for the table of contents: with local set, what the file seems to have from
// there, the rest from the registry.
func (s *source) reader(ctx context.Context, local bool) io.ReaderAt {
	return readerAt(func(p []byte, at int64) (int, error) {
		if at >= s.layer.Size {
			return 0, io.EOF
		}
		n := min(int64(len(p)), s.layer.Size-at)
		var data []byte
		if local {
			data = s.local(at, n)
		}
		if data == nil {
			var err error
			if data, err = s.remote(ctx, at, n, nil); err != nil {
				return 0, err
			}
		}
		if copy(p, data) < len(p) {
			return len(data), io.EOF
		}
		return len(p), nil
	})
}

type readerAt func(p []byte, at int64) (int, error)

func (f readerAt) ReadAt(p []byte, at int64) (int, error) { return f(p, at) }
