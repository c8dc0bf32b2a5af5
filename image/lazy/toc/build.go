package toc

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/containerd/stargz-snapshotter/estargz"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/image/unpack"
)

// builder makes the tree of the entries, in their order.
type builder struct {
	t         *Tree
	end       int64
	names     map[string]uint64 // by path; the root is "."
	implied   map[uint64]bool   // directories that no entry was for yet
	whiteouts []string          // paths that are hidden
	opaque    map[uint64]bool

	room    Room
	charged int64 // of Tree.bytes

	last  uint64 // the regular file that chunks belong to; 0: none
	bytes int64
}

func newBuilder(end int64, room Room) *builder {
	b := &builder{
		t: &Tree{end: end}, end: end, room: room, names: map[string]uint64{}, implied: map[uint64]bool{}, opaque: map[uint64]bool{},
	}
	b.names["."] = b.node(Node{Mode: unix.S_IFDIR | 0o755, Nlink: 2, Parent: Root})
	b.implied[Root] = true
	return b
}

func (b *builder) node(n Node) uint64 {
	b.t.nodes = append(b.t.nodes, n)
	b.t.bytes += nodeBytes + int64(len(n.Link)) + n.xattrBytes()
	return uint64(len(b.t.nodes)) - 1 + Root
}

func (b *builder) at(n uint64) *Node { return &b.t.nodes[n-Root] }

// add takes one entry.
func (b *builder) add(e *estargz.TOCEntry) error {
	b.t.bytes += int64(len(e.Name)) // directories and files keep parts of it
	if err := b.take(e); err != nil {
		return err
	}
	return b.charge(roomStep)
}

func (b *builder) take(e *estargz.TOCEntry) error {
	if e.Type == "chunk" {
		return b.chunk(e)
	}
	if err := b.complete(); err != nil {
		return err
	}
	name, err := cleanName(e.Name)
	if err != nil {
		return err
	}
	hidden, skip, err := unpack.WhiteoutOf(name)
	switch {
	case err != nil:
		return err
	case skip:
		return nil
	case hidden == unpack.OpaqueMark:
		dir, err := b.dir(path.Dir(name))
		b.opaque[dir] = true
		return err
	case hidden != "":
		_, err := b.dir(path.Dir(name))
		b.whiteouts = append(b.whiteouts, path.Join(path.Dir(name), hidden))
		return err
	case e.Type == "hardlink":
		return b.hardlink(name, e.LinkName)
	}
	n, err := nodeOf(e)
	if err != nil {
		return err
	}
	if e.Type == "dir" {
		return b.directory(name, n)
	}
	id, err := b.enter(name, n)
	if err != nil {
		return err
	}
	if e.Type == "reg" {
		return b.file(id, name, e)
	}
	return nil
}

// file starts a regular file; its first chunk is in its own entry.
func (b *builder) file(id uint64, name string, e *estargz.TOCEntry) error {
	n := b.at(id)
	n.path, n.Size, n.first = name, e.Size, len(b.t.chunks)
	if e.Size < 0 || e.Size > maxBytes-b.bytes {
		return fmt.Errorf("size %d is negative, or files hold more than %d bytes", e.Size, int64(maxBytes))
	}
	b.bytes += e.Size
	if e.Size == 0 {
		return nil
	}
	b.last = id
	return b.chunk(e)
}

// chunk adds the next part of the last regular file.
func (b *builder) chunk(e *estargz.TOCEntry) error {
	if b.last == 0 {
		return errors.New("chunk of no file")
	}
	n := b.at(b.last)
	var at int64
	if n.chunks > 0 {
		before := b.t.chunks[len(b.t.chunks)-1]
		at = before.At + before.Size
	}
	c := Chunk{At: e.ChunkOffset, Size: e.ChunkSize, Offset: e.Offset, Inner: e.InnerOffset}
	if c.Size == 0 {
		c.Size = n.Size - c.At
	}
	d := e.ChunkDigest
	if d == "" && c.At == 0 && c.Size == n.Size {
		d = e.Digest // of a file in one chunk
	}
	var err error
	if c.Digest, err = checkDigest(d); err != nil {
		return err
	}
	switch {
	case c.At != at || c.Size <= 0 || c.Size > n.Size-c.At:
		return fmt.Errorf("chunk of %d bytes from byte %d on, in a file of %d that the table has up to byte %d", c.Size, c.At, n.Size, at)
	case c.Size > maxChunk || c.Inner < 0 || c.Inner > maxSpan:
		return fmt.Errorf("chunk of %d bytes after %d others, more than %d are not read at once", c.Size, c.Inner, maxChunk)
	case c.Offset < 0 || c.Offset >= b.end:
		return fmt.Errorf("chunk at byte %d of the blob, whose files end at byte %d", c.Offset, b.end)
	}
	b.t.chunks = append(b.t.chunks, c)
	b.t.bytes += chunkBytes + int64(len(c.Digest))
	n.chunks++
	return nil
}

// complete says whether the last regular file has all its chunks.
func (b *builder) complete() error {
	if b.last == 0 {
		return nil
	}
	n := b.at(b.last)
	b.last = 0
	c := b.t.chunks[len(b.t.chunks)-1]
	if c.At+c.Size != n.Size {
		return fmt.Errorf("file %q before it has %d bytes, its chunks %d", n.path, n.Size, c.At+c.Size)
	}
	return nil
}

// enter gives a new node a name that nothing has yet.
func (b *builder) enter(name string, n Node) (uint64, error) {
	if _, taken := b.names[name]; taken {
		return 0, errors.New("the name is there twice")
	}
	parent, err := b.dir(path.Dir(name))
	if err != nil {
		return 0, err
	}
	id := b.node(n)
	b.names[name] = id
	b.link(parent, path.Base(name), id)
	return id, nil
}

func (b *builder) link(parent uint64, name string, id uint64) {
	p := b.at(parent)
	p.Entries = append(p.Entries, Entry{name, id})
	b.t.bytes += entryBytes
}

// directory takes an entry of a directory, which may have been made for what is in it.
func (b *builder) directory(name string, n Node) error {
	id, there := b.names[name]
	if there && !b.implied[id] {
		return errors.New("the name is there twice")
	}
	if !there {
		var err error
		if id, err = b.dir(name); err != nil {
			return err
		}
	}
	delete(b.implied, id)
	old := b.at(id)
	n.Entries, n.Parent, n.Nlink = old.Entries, old.Parent, old.Nlink
	b.t.bytes += n.xattrBytes()
	*old = n
	return nil
}

// dir finds a directory, or makes it: root's, 0755.
func (b *builder) dir(name string) (uint64, error) {
	if id, there := b.names[name]; there {
		if b.at(id).Mode&unix.S_IFMT != unix.S_IFDIR {
			return 0, fmt.Errorf("%q is no directory", name)
		}
		return id, nil
	}
	parent, err := b.dir(path.Dir(name))
	if err != nil {
		return 0, err
	}
	if len(b.t.nodes) > maxEntries {
		return 0, fmt.Errorf("more than %d directories and files", maxEntries)
	}
	id := b.node(Node{Mode: unix.S_IFDIR | 0o755, Nlink: 2, Parent: parent})
	b.names[name], b.implied[id] = id, true
	b.link(parent, path.Base(name), id)
	b.at(parent).Nlink++
	return id, nil
}

func (b *builder) hardlink(name, target string) error {
	to, err := cleanName(target)
	if err != nil {
		return err
	}
	id, there := b.names[to]
	if !there || b.at(id).Mode&unix.S_IFMT == unix.S_IFDIR {
		return fmt.Errorf("hard link to %q, which is no file before it", target)
	}
	if _, taken := b.names[name]; taken {
		return errors.New("the name is there twice")
	}
	parent, err := b.dir(path.Dir(name))
	if err != nil {
		return err
	}
	b.names[name] = id
	b.link(parent, path.Base(name), id)
	b.at(id).Nlink++
	return nil
}

// tableFile adds the file that the table itself is in the archive: the writer gives it nothing but
// a name and a size.
func (b *builder) tableFile(table []byte) error {
	if err := b.complete(); err != nil {
		return err
	}
	id, err := b.enter(TableName, Node{Mode: unix.S_IFREG, Nlink: 1, Size: int64(len(table)), Time: time.Unix(0, 0), table: true})
	if err != nil {
		return fmt.Errorf("%q: %w", TableName, err)
	}
	b.at(id).path = TableName
	b.t.table = table
	return nil
}

// finish applies what is hidden, and puts everything in order.
func (b *builder) finish() (*Tree, error) {
	for _, name := range b.whiteouts {
		id, there := b.names[name]
		if !there {
			if _, err := b.enter(name, Node{Mode: unix.S_IFCHR, Nlink: 1}); err != nil {
				return nil, fmt.Errorf("%w: whiteout of %q: %w", ErrUnsuitable, name, err)
			}
			continue
		}
		// What the layer has itself is not hidden; a directory would be merged with what is.
		if b.at(id).Mode&unix.S_IFMT == unix.S_IFDIR {
			b.opaque[id] = true
		}
	}
	for id := range b.opaque {
		n := b.at(id)
		if n.Xattrs == nil {
			n.Xattrs = map[string][]byte{}
			b.t.bytes += mapBytes
		}
		n.Xattrs["trusted.overlay.opaque"] = []byte("y")
	}
	for i := range b.t.nodes {
		slices.SortFunc(b.t.nodes[i].Entries, func(a, c Entry) int { return cmp.Compare(a.Name, c.Name) })
	}
	if err := b.bound(); err != nil {
		return nil, err
	}
	return b.t, b.charge(0)
}

// bound finds where each chunk's packed bytes end: where the next begin.
func (b *builder) bound() error {
	offsets := make([]int64, 0, len(b.t.chunks)+1)
	for _, c := range b.t.chunks {
		offsets = append(offsets, c.Offset)
	}
	offsets = append(offsets, b.end)
	slices.Sort(offsets)
	offsets = slices.Compact(offsets)
	for i := range b.t.chunks {
		c := &b.t.chunks[i]
		at, _ := slices.BinarySearch(offsets, c.Offset)
		c.Next = offsets[at+1]
		if c.Next-c.Offset > maxSpan {
			return fmt.Errorf("%w: chunk at byte %d takes %d bytes of the blob", ErrUnsuitable, c.Offset, c.Next-c.Offset)
		}
	}
	return nil
}

var types = map[string]uint32{
	"dir": unix.S_IFDIR, "reg": unix.S_IFREG, "symlink": unix.S_IFLNK,
	"char": unix.S_IFCHR, "block": unix.S_IFBLK, "fifo": unix.S_IFIFO,
}

// nodeOf is an entry's node, without content.
func nodeOf(e *estargz.TOCEntry) (Node, error) {
	kind, known := types[e.Type]
	if !known {
		return Node{}, fmt.Errorf("type %q is unknown", e.Type)
	}
	if e.UID < 0 || int64(e.UID) >= math.MaxUint32 || e.GID < 0 || int64(e.GID) >= math.MaxUint32 {
		return Node{}, fmt.Errorf("owner %d:%d out of range", e.UID, e.GID)
	}
	if e.DevMajor < 0 || e.DevMajor > 0xfff || e.DevMinor < 0 || e.DevMinor > 0xfffff {
		return Node{}, fmt.Errorf("device number %d:%d out of range", e.DevMajor, e.DevMinor)
	}
	n := Node{Mode: kind | uint32(e.Mode)&0o7777, UID: uint32(e.UID), GID: uint32(e.GID), Nlink: 1}
	if e.ModTime3339 != "" {
		var err error
		if n.Time, err = time.Parse(time.RFC3339, e.ModTime3339); err != nil {
			return Node{}, fmt.Errorf("time: %w", err)
		}
		n.Time = n.Time.UTC() // without a zone of its own, which takes memory
	}
	switch e.Type {
	case "symlink":
		if e.LinkName == "" || len(e.LinkName) >= unix.PathMax || strings.ContainsRune(e.LinkName, 0) {
			return Node{}, errors.New("target of a symbolic link that cannot be one")
		}
		n.Link, n.Mode, n.Size = e.LinkName, unix.S_IFLNK|0o777, int64(len(e.LinkName))
	case "char", "block":
		n.Major, n.Minor = uint32(e.DevMajor), uint32(e.DevMinor)
		if e.Type == "char" && n.Major == 0 && n.Minor == 0 {
			return Node{}, errors.New("a device that overlayfs takes for a whiteout")
		}
	}
	return n, n.takeXattrs(e)
}

// takeXattrs keeps the attributes that unpacking would.
func (n *Node) takeXattrs(e *estargz.TOCEntry) error {
	if len(e.Xattrs) > maxXattrs {
		return fmt.Errorf("more than %d extended attributes", maxXattrs)
	}
	for name, value := range e.Xattrs {
		if len(name) > unix.NAME_MAX || len(value) > maxXattrBytes || strings.ContainsRune(name, 0) {
			return fmt.Errorf("extended attribute %.40q is too large", name)
		}
		if !unpack.Kept(name) || strings.HasPrefix(name, "user.") && e.Type != "reg" && e.Type != "dir" {
			continue
		}
		if n.Xattrs == nil {
			n.Xattrs = map[string][]byte{}
		}
		n.Xattrs[name] = value
	}
	return nil
}

// xattrBytes is the memory that the attributes take.
func (n *Node) xattrBytes() (bytes int64) {
	if n.Xattrs == nil {
		return 0
	}
	for name, value := range n.Xattrs {
		bytes += xattrBytes + int64(len(name)+len(value))
	}
	return bytes + mapBytes
}
