package toc

import (
	"bytes"
	"fmt"
	"io"

	"github.com/containerd/stargz-snapshotter/estargz"
	"github.com/opencontainers/go-digest"
)

// Read reads the table at the end of a blob, whose digest has to be want. It asks for room for all
// that it reads, packed and not, and for the tree; afterwards only Tree.Bytes of that is needed.
func Read(blob io.ReaderAt, size int64, want digest.Digest, room Room) (*Tree, error) {
	r := io.NewSectionReader(blob, 0, size)
	at, footer, err := estargz.OpenFooter(r)
	if err != nil {
		return nil, fmt.Errorf("%w: footer: %w", ErrUnsuitable, err)
	}
	if at <= 0 || at >= size-footer || size-at > MaxTable {
		return nil, fmt.Errorf("%w: its table is said to be from byte %d on, of %d", ErrUnsuitable, at, size)
	}
	if err := room.take(size - footer - at); err != nil {
		return nil, err
	}
	packed := make([]byte, size-footer-at)
	if _, err := io.ReadFull(io.NewSectionReader(r, at, int64(len(packed))), packed); err != nil {
		return nil, fmt.Errorf("read table of contents: %w", err)
	}
	var z estargz.GzipDecompressor
	plain, err := z.DecompressTOC(bytes.NewReader(packed))
	if err != nil {
		return nil, fmt.Errorf("%w: table: %w", ErrUnsuitable, err)
	}
	defer plain.Close()
	table, err := io.ReadAll(roomReader{io.LimitReader(plain, MaxTable+1), room})
	if err != nil {
		return nil, fmt.Errorf("%w: table: %w", ErrUnsuitable, err)
	}
	if len(table) > MaxTable {
		return nil, fmt.Errorf("%w: its table has more than %d bytes", ErrUnsuitable, MaxTable)
	}
	return parse(table, at, want, room)
}

// Parse makes a tree of a table, whose digest has to be want, of a blob that has files up to byte
// end. It asks for room for the tree and the table, which the tree keeps.
func Parse(table []byte, end int64, want digest.Digest, room Room) (*Tree, error) {
	if err := room.take(int64(len(table))); err != nil {
		return nil, err
	}
	return parse(table, end, want, room)
}

func parse(table []byte, end int64, want digest.Digest, room Room) (*Tree, error) {
	if err := want.Validate(); err != nil {
		return nil, fmt.Errorf("%w: digest of its table %q: %w", ErrUnsuitable, want, err)
	}
	if got := want.Algorithm().FromBytes(table); got != want {
		return nil, fmt.Errorf("%w: its table has digest %s, the manifest says %s", ErrUnsuitable, got, want)
	}
	b := newBuilder(end, room)
	if err := eachEntry(table, b.add); err != nil {
		return nil, fmt.Errorf("%w: table: %w", ErrUnsuitable, err)
	}
	if err := b.tableFile(table); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnsuitable, err)
	}
	return b.finish()
}

// Extract unpacks a chunk from its bytes in the blob, and compares it with its digest.
func (c *Chunk) Extract(packed []byte) ([]byte, error) {
	var z estargz.GzipDecompressor
	r, err := z.Reader(bytes.NewReader(packed))
	if err != nil {
		return nil, fmt.Errorf("unpack chunk at byte %d: %w", c.Offset, err)
	}
	defer r.Close()
	if _, err := io.CopyN(io.Discard, r, c.Inner); err != nil {
		return nil, fmt.Errorf("unpack chunk at byte %d: %w", c.Offset, err)
	}
	data := make([]byte, c.Size)
	if _, err := io.ReadFull(r, data); err != nil {
		return nil, fmt.Errorf("unpack chunk at byte %d: %w", c.Offset, err)
	}
	return data, c.Check(data)
}

// Check compares a chunk's content with its digest.
func (c *Chunk) Check(data []byte) error {
	if got := c.Digest.Algorithm().FromBytes(data); got != c.Digest {
		return fmt.Errorf("chunk at byte %d of the blob has digest %s, the table of contents says %s", c.Offset, got, c.Digest)
	}
	return nil
}
