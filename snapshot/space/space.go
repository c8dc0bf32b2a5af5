// Package space knows what directories take on disk: by adding it up, or by the file system's
// project quotas, which limit it too.
package space

import (
	"context"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/internal/treewalk"
	"github.com/coracle-project/coracle/snapshot/diff"
)

// Usage is space taken on disk.
type Usage struct {
	Bytes  int64 `json:"bytes,omitempty"` // allocated (blocks of 512 bytes, hard links counted once)
	Inodes int64 `json:"inodes,omitempty"`
}

// Measure adds up what a tree takes on disk.
func Measure(ctx context.Context, dir string) (Usage, error) {
	fd, err := diff.OpenRoot(dir)
	if err != nil {
		return Usage{}, err
	}
	defer unix.Close(fd)
	total, err := treewalk.Sum(ctx, fd)
	if err != nil {
		return Usage{}, err
	}
	return Usage{Bytes: total.Bytes, Inodes: total.Inodes()}, nil
}
