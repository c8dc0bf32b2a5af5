package image

import (
	"fmt"
	"io/fs"
	"os"
	"sync"
	"syscall"

	"github.com/opencontainers/go-digest"
)

// usage counts the blobs in memory, so that asking costs nothing.
type usage struct {
	mu    sync.Mutex
	blobs map[digest.Digest]int64 // allocated bytes
	bytes int64
}

// count takes stock of the blobs directory.
func (u *usage) count(dir string) error {
	files, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, f := range files {
		info, err := f.Info()
		if err != nil {
			continue // it is damaged; whoever needs it will tell
		}
		u.add(digest.NewDigestFromEncoded(digest.SHA256, f.Name()), allocated(info))
	}
	return nil
}

// countBlob counts a blob that has got its name.
func (s *Store) countBlob(d digest.Digest) {
	if info, err := os.Stat(s.layout.blob(d)); err == nil {
		s.usage.add(d, allocated(info))
	}
}

// allocated is what a file takes on its file system, bytes; st_blocks are of 512 whatever its own.
func allocated(info fs.FileInfo) int64 { return info.Sys().(*syscall.Stat_t).Blocks * 512 }

func (u *usage) add(d digest.Digest, size int64) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.blobs == nil {
		u.blobs = map[digest.Digest]int64{}
	}
	u.bytes += size - u.blobs[d]
	u.blobs[d] = size
}

func (u *usage) remove(d digest.Digest) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.bytes -= u.blobs[d]
	delete(u.blobs, d)
}

// Usage returns what images take on disk, in allocated bytes and inodes: blobs, and
// all unpacked layers. It reads memory only.
func (s *Store) Usage() (bytes, inodes int64, err error) {
	s.usage.mu.Lock()
	bytes, inodes = s.usage.bytes, int64(len(s.usage.blobs))
	s.usage.mu.Unlock()
	layers, err := s.cfg.Layers.Layers()
	if err != nil {
		return 0, 0, fmt.Errorf("usage of layers: %w", err)
	}
	for _, d := range layers {
		u, err := s.cfg.Layers.LayerUsage(d)
		if err != nil {
			continue // removed since it was listed
		}
		bytes, inodes = bytes+u.Bytes, inodes+u.Inodes
	}
	return bytes, inodes, nil
}

// Root returns the store's directory, the mount point to report in CRI's ImageFsInfo.
func (s *Store) Root() string { return s.layout.root }
