package blobs

import (
	"io/fs"
	"iter"
	"maps"
	"os"
	"slices"
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
			continue // it is damaged; its next use will tell
		}
		u.add(digest.NewDigestFromEncoded(digest.SHA256, f.Name()), allocated(info))
	}
	return nil
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

// Total is what the blobs take.
func (u *usage) Total() (bytes, inodes int64) {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.bytes, int64(len(u.blobs))
}

// Of is what some blobs take, allocated bytes.
func (u *usage) Of(blobs iter.Seq[digest.Digest]) (bytes int64) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for d := range blobs {
		bytes += u.blobs[d]
	}
	return bytes
}

// Each yields the blobs in the order of their digests, with allocated bytes.
func (u *usage) Each() iter.Seq2[digest.Digest, int64] {
	u.mu.Lock()
	all := maps.Clone(u.blobs)
	u.mu.Unlock()
	return func(yield func(digest.Digest, int64) bool) {
		for _, d := range slices.Sorted(maps.Keys(all)) {
			if !yield(d, all[d]) {
				return
			}
		}
	}
}
