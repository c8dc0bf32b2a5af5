// Package toc reads the table of contents of an estargz layer into a tree of files, and chunks of
// files out of the blob. Both are untrusted. The table is used only if its digest is what the
// manifest says, and it is bounded before it is parsed. A layer with anything unusual in it is
// refused (ErrUnsuitable), because it can be unpacked instead.
//
// The tree is what package unpack would make of the layer with unpack.OverlayMarkers.
package toc

import (
	"errors"
	"time"

	"github.com/containerd/stargz-snapshotter/estargz"
	"github.com/opencontainers/go-digest"
)

// ErrUnsuitable is a layer that has no such table, or a table that is not to be relied on.
var ErrUnsuitable = errors.New("layer is no estargz that can be read lazily")

// Bounds of a layer.
const (
	MaxTable      = 64 << 20 // bytes of the table, packed and not
	maxEntries    = 1 << 19  // each takes some hundreds of bytes for as long as the layer is shown; of real ones no more fit into MaxTable
	maxBytes      = 64 << 30 // of all files
	maxChunk      = 16 << 20 // of a file
	maxSpan       = 32 << 20 // of the blob, for one chunk
	maxXattrs     = 256
	maxXattrBytes = 64 << 10
)

// Tree is the files of a layer. It does not change.
type Tree struct {
	nodes  []Node
	chunks []Chunk
	table  []byte // the content of the table's own file
	end    int64  // of the files in the blob
	bytes  int64  // of memory, without table
}

// TableName is the file that the table is.
const TableName = estargz.TOCTarName

// End is where the files end in the blob, as Parse wants it.
func (t *Tree) End() int64 { return t.end }

// Root is the number of the root directory; nodes have numbers from there on, the same each time
// that the table is read.
const Root = 1

// Node is one file of any kind.
type Node struct {
	Mode          uint32 // with the type, as stat(2)
	UID, GID      uint32
	Nlink         uint32
	Major, Minor  uint32
	Size          int64
	Time          time.Time
	Link          string // target of a symbolic link
	Xattrs        map[string][]byte
	Entries       []Entry // of a directory, sorted by name
	Parent        uint64  // of a directory: its own
	path          string  // of a regular file, the first of its names
	first, chunks int     // of Tree.chunks
	table         bool    // its content is Tree.table
}

// Entry is a name in a directory.
type Entry struct {
	Name string
	Node uint64
}

// Chunk is a part of a file that is packed on its own.
type Chunk struct {
	At, Size     int64 // in the file
	Offset, Next int64 // in the blob: its packed bytes are between
	Inner        int64 // bytes to pass over after unpacking
	Digest       digest.Digest
}

// Node returns a node by its number; nil if there is none.
func (t *Tree) Node(n uint64) *Node {
	if n < Root || n > uint64(len(t.nodes)) {
		return nil
	}
	return &t.nodes[n-Root]
}

// Nodes is how many there are.
func (t *Tree) Nodes() int { return len(t.nodes) }

// Lookup finds a name in a directory.
func (n *Node) Lookup(name string) (uint64, bool) {
	lo, hi := 0, len(n.Entries)
	for lo < hi {
		mid := (lo + hi) / 2
		if n.Entries[mid].Name < name {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	if lo < len(n.Entries) && n.Entries[lo].Name == name {
		return n.Entries[lo].Node, true
	}
	return 0, false
}

// Path is a name of a regular file, from the layer's root on.
func (n *Node) Path() string { return n.path }

// Table is the content of a file if it is the table of contents itself, which unpacking makes a
// file of, too.
func (t *Tree) Table(n *Node) (content []byte, ok bool) { return t.table, n.table }

// Chunks are the parts of a regular file, in order and without gaps, and the number of the first.
func (t *Tree) Chunks(n *Node) (chunks []Chunk, first int) {
	return t.chunks[n.first : n.first+n.chunks], n.first
}
