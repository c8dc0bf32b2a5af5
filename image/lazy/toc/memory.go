package toc

import (
	"io"
	"unsafe"
)

// Room is asked before a table takes n more bytes of memory; an error refuses the layer. A nil Room
// has no bound.
type Room func(n int64) error

func (r Room) take(n int64) error {
	if r == nil || n <= 0 {
		return nil
	}
	return r(n)
}

// What parts of a tree take. Slices that grow have a quarter more than they need.
const (
	nodeBytes  = int64(unsafe.Sizeof(Node{})) * 5 / 4
	entryBytes = int64(unsafe.Sizeof(Entry{})) * 5 / 4
	chunkBytes = int64(unsafe.Sizeof(Chunk{})) * 5 / 4
	mapBytes   = 512 // a small map
	xattrBytes = 48  // the headers of its name and value
	roomStep   = 1 << 20
)

// Bytes is how much memory the tree takes, about.
func (t *Tree) Bytes() int64 { return t.bytes + int64(len(t.table)) }

// charge asks for the room that the tree takes by now, if that is at least so much more.
func (b *builder) charge(least int64) error {
	more := b.t.bytes - b.charged
	if more < least {
		return nil
	}
	b.charged = b.t.bytes
	return b.room.take(more)
}

// roomReader asks for room for all that is read.
type roomReader struct {
	io.Reader
	room Room
}

func (r roomReader) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	if room := r.room.take(int64(n)); room != nil {
		return n, room
	}
	return n, err
}
