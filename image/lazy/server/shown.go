package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sort"
	"sync"

	"github.com/coracle-project/coracle/image/lazy"
	"github.com/coracle-project/coracle/image/lazy/show"
	"github.com/coracle-project/coracle/image/lazy/toc"
	"github.com/coracle-project/coracle/internal/safepath"
)

// shown is one layer that is mounted.
type shown struct {
	lazy.Layer
	key    string // in the holder: the diff id and when it was made
	source *source
	tree   *toc.Tree
	memory share // of the tree
	chunks *chunks
	slots  slots // of what is fetched for readers
	log    *slog.Logger

	conn     *os.File // the connection to the kernel
	server   *show.Server
	greeting show.Greeting

	// whole is closed when the blob is here, or never will be: then wrong says why.
	whole chan struct{}
	wrong error
	// done is closed when the layer is gone from here.
	done chan struct{}

	complaints complaints // of its readers

	mu       sync.Mutex
	unpacked *unpackedFiles
}

// unpackedFiles are the same files, unpacked.
type unpackedFiles struct {
	dir  string
	root *safepath.Root
}

// readTable reads the table of contents from the blob: from its file if another process has brought
// it there, or else from the registry.
func (l *shown) readTable(ctx context.Context, create bool) error {
	err := l.source.open(create)
	if err == nil && !create {
		l.tree, err = toc.Read(l.source.reader(ctx, true), l.Size, l.TOC, l.memory.take)
	}
	if err == nil && create || errors.Is(err, toc.ErrUnsuitable) {
		l.memory.settle(0)
		l.tree, err = toc.Read(l.source.reader(ctx, false), l.Size, l.TOC, l.memory.take)
	}
	if err == nil {
		l.memory.settle(l.tree.Bytes())
	}
	if errors.Is(err, toc.ErrUnsuitable) {
		err = fmt.Errorf("%w: %w", lazy.ErrUnsuitable, err)
	}
	return err
}

// readUnpackedTable reads it from the unpacked files, of which it is one.
func (l *shown) readUnpackedTable(r record) error {
	if err := l.use(r.Unpacked); err != nil {
		return err
	}
	table, err := l.unpacked.root.ReadFile(toc.TableName, toc.MaxTable)
	if err == nil {
		l.tree, err = toc.Parse(table, r.End, l.TOC, l.memory.take)
	}
	return err
}

// ReadAt reads a file, chunk by chunk.
func (l *shown) ReadAt(ctx context.Context, n *toc.Node, p []byte, at int64) (int, error) {
	if table, ok := l.tree.Table(n); ok {
		if at >= int64(len(table)) {
			return 0, nil
		}
		return copy(p, table[at:]), nil
	}
	all, first := l.tree.Chunks(n)
	done := 0
	for i := sort.Search(len(all), func(i int) bool { return all[i].At+all[i].Size > at }); i < len(all) && done < len(p); i++ {
		data, err := l.chunks.get(ctx, chunkKey{l, first + i}, func(ctx context.Context) ([]byte, error) {
			return l.read(ctx, n, &all[i])
		})
		if err != nil {
			if ctx.Err() == nil && l.complaints.next() {
				l.log.Error("cannot read a file of a lazy layer", "file", n.Path(), "err", err)
			}
			return done, err
		}
		got := copy(p[done:], data[at-all[i].At:])
		done, at = done+got, at+int64(got)
	}
	return done, nil
}

// read gets a chunk whose digest is right: from the unpacked file, from the blob's file, or from
// the registry, in no more than the layer's timeout.
func (l *shown) read(ctx context.Context, n *toc.Node, c *toc.Chunk) (data []byte, err error) {
	err = l.chunks.slots.in(ctx, func() error {
		data = l.here(n, c)
		return nil
	})
	if data != nil || err != nil {
		return data, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, l.Timeout, fmt.Errorf("registry %s has not sent it in %s", l.Domain, l.Timeout))
	defer cancel()
	err = l.slots.in(ctx, func() error {
		memory := min(c.Next-c.Offset+c.Size, fetchedBytes) // packed and not
		if err := l.chunks.fetched.Acquire(ctx, memory); err != nil {
			return err
		}
		defer l.chunks.fetched.Release(memory)
		_, err := l.source.remote(ctx, c.Offset, c.Next-c.Offset, func(packed []byte) (err error) {
			data, err = c.Extract(packed)
			return err
		})
		return err
	})
	if err != nil && errors.Is(err, context.DeadlineExceeded) {
		err = context.Cause(ctx)
	}
	return data, err
}

// here reads a chunk without the registry; nil if that has to be asked.
func (l *shown) here(n *toc.Node, c *toc.Chunk) []byte {
	if data, err := l.fromUnpacked(n, c); err != nil {
		if l.complaints.next() {
			l.log.Warn("unpacked file of a lazy layer is not used", "file", n.Path(), "err", err)
		}
	} else if data != nil {
		return data
	}
	if packed := l.source.local(c.Offset, c.Next-c.Offset); packed != nil {
		if data, err := c.Extract(packed); err == nil {
			return data
		}
	}
	return nil
}

// fromUnpacked reads a chunk of the unpacked file; nil if there is none.
func (l *shown) fromUnpacked(n *toc.Node, c *toc.Chunk) ([]byte, error) {
	l.mu.Lock()
	defer l.mu.Unlock() // or root could be closed meanwhile
	if l.unpacked == nil {
		return nil, nil
	}
	f, err := l.unpacked.root.OpenRegular(n.Path())
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data := make([]byte, c.Size)
	if _, err := io.ReadFull(io.NewSectionReader(f, c.At, c.Size), data); err != nil {
		return nil, err
	}
	return data, c.Check(data)
}

// use has files read from where they are unpacked from now on, and lets go of the blob.
func (l *shown) use(dir string) error {
	root, err := safepath.Open(dir)
	if err != nil {
		return err
	}
	l.mu.Lock()
	old := l.unpacked
	l.unpacked = &unpackedFiles{dir, root}
	l.mu.Unlock()
	old.close()
	l.source.drop()
	return nil
}

func (u *unpackedFiles) close() {
	if u != nil {
		u.root.Close()
	}
}

// unpackedDir is what use was called with, "" if it was not.
func (l *shown) unpackedDir() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.unpacked == nil {
		return ""
	}
	return l.unpacked.dir
}

// discard lets go of what newShown and readTable have taken.
func (l *shown) discard() {
	l.memory.settle(0)
	l.source.close()
}

// end lets go of everything.
func (l *shown) end() {
	close(l.done)
	l.chunks.forget(l)
	l.mu.Lock()
	u := l.unpacked
	l.unpacked = nil
	l.mu.Unlock()
	u.close()
	l.discard()
	l.conn.Close()
}
