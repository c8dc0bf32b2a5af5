package server

import (
	"container/list"
	"context"
	"sync"

	"golang.org/x/sync/semaphore"
)

const (
	// keptBytes is how many bytes of unpacked chunks are kept, of all layers: the kernel asks for
	// 128 KiB at a time of chunks that mostly have 4 MiB, and keeps what it has read itself.
	keptBytes = 32 << 20
	// atOnce is how many chunks that are here are unpacked at the same time, of all layers, and how
	// many are fetched of each: the registry of one layer does not hold up the readers of others.
	atOnce = 8
	// fetchedBytes is how much memory is used for chunks that are being fetched, of all layers. A
	// container may read from many layers at the same time, and its own limit does not count this.
	fetchedBytes = 256 << 20
)

// chunkKey is a chunk of a layer.
type chunkKey struct {
	layer *shown
	chunk int
}

// chunks are those read last. Readers of one that is being read share the work, which goes on
// as long as one of them waits.
type chunks struct {
	slots   slots
	fetched *semaphore.Weighted // of fetchedBytes

	mu    sync.Mutex
	bytes int
	old   list.List // of *kept, the one used last in front
	kept  map[chunkKey]*list.Element
	calls map[chunkKey]*call
}

type kept struct {
	key  chunkKey
	data []byte
}

type call struct {
	waiters int // guarded by chunks.mu
	cancel  context.CancelFunc
	done    chan struct{}
	data    []byte
	err     error
}

func newChunks() *chunks {
	return &chunks{
		slots: newSlots(), fetched: semaphore.NewWeighted(fetchedBytes),
		kept: map[chunkKey]*list.Element{}, calls: map[chunkKey]*call{},
	}
}

// slots bound what is done at the same time.
type slots chan struct{}

func newSlots() slots { return make(slots, atOnce) }

// in calls do when there is a slot.
func (s slots) in(ctx context.Context, do func() error) error {
	select {
	case s <- struct{}{}:
		defer func() { <-s }()
		return do()
	case <-ctx.Done():
		return ctx.Err()
	}
}

// get returns a chunk, which no one changes. read is called if it is not here, with a context
// that ends when no one waits any more.
func (c *chunks) get(ctx context.Context, key chunkKey, read func(context.Context) ([]byte, error)) ([]byte, error) {
	w, data := c.join(key, read)
	if w == nil {
		return data, nil
	}
	select {
	case <-w.done:
		return w.data, w.err
	case <-ctx.Done():
		c.leave(key, w)
		return nil, ctx.Err()
	}
}

func (c *chunks) join(key chunkKey, read func(context.Context) ([]byte, error)) (*call, []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e := c.kept[key]; e != nil {
		c.old.MoveToFront(e)
		return nil, e.Value.(*kept).data
	}
	w := c.calls[key]
	if w == nil {
		ctx, cancel := context.WithCancel(context.Background())
		w = &call{cancel: cancel, done: make(chan struct{})}
		c.calls[key] = w
		go c.run(ctx, key, w, read)
	}
	w.waiters++
	return w, nil
}

func (c *chunks) run(ctx context.Context, key chunkKey, w *call, read func(context.Context) ([]byte, error)) {
	defer w.cancel()
	w.data, w.err = read(ctx)
	c.mu.Lock()
	if c.calls[key] == w {
		delete(c.calls, key)
	}
	if w.err == nil {
		c.keepLocked(key, w.data)
	}
	c.mu.Unlock()
	close(w.done)
}

// leave removes a reader that was killed. When the last one leaves, the work ends; the next reader
// starts it again.
func (c *chunks) leave(key chunkKey, w *call) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if w.waiters--; w.waiters > 0 {
		return
	}
	w.cancel()
	if c.calls[key] == w {
		delete(c.calls, key)
	}
}

func (c *chunks) keepLocked(key chunkKey, data []byte) {
	if c.kept[key] != nil {
		return
	}
	c.kept[key] = c.old.PushFront(&kept{key, data})
	c.bytes += len(data)
	for c.bytes > keptBytes {
		c.dropLocked(c.old.Back())
	}
}

func (c *chunks) dropLocked(e *list.Element) {
	k := c.old.Remove(e).(*kept)
	delete(c.kept, k.key)
	c.bytes -= len(k.data)
}

// forget drops the chunks of a layer that is gone.
func (c *chunks) forget(l *shown) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for key, e := range c.kept {
		if key.layer == l {
			c.dropLocked(e)
		}
	}
}
