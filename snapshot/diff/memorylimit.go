package diff

import (
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/internal/treewalk"
)

// room bounds what a walk in order keeps in memory: the names of each directory on the way to where
// it is, which have to be sorted, and the first names of files with several. Containers and images
// decide how many those are.
type room struct{ left int }

// maxRoom is enough for a million files in one directory; a layer has two million at most.
const maxRoom = 192 << 20

// What is kept of a thing besides its name, about, in bytes.
const (
	nameCost = 64
	nodeCost = 320
)

func newRoom() *room { return &room{maxRoom} }

// take fails when no room is left.
func (r *room) take(bytes int) error {
	if r.left -= bytes; r.left < 0 {
		return fmt.Errorf("%w: too many files: the names in its directories take more than %d MiB of memory; spread or remove them", ErrInvalid,
			maxRoom>>20)
	}
	return nil
}

func (r *room) give(bytes int) { r.left += bytes }

// sortedNames reads an open directory. The caller gives back what that took.
func (r *room) sortedNames(fd int) (names []string, took int, err error) {
	if _, err := unix.Seek(fd, 0, unix.SEEK_SET); err != nil {
		return nil, 0, err
	}
	err = treewalk.EachEntry(fd, func(name string) error {
		names = append(names, name)
		took += len(name) + nameCost
		return r.take(len(name) + nameCost)
	})
	slices.Sort(names)
	return names, took, err
}
