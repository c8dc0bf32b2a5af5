package server

import (
	"fmt"
	"sync"

	"github.com/coracle-project/coracle/image/lazy"
)

// tableBytes is how much memory the tables of contents of all layers may take. Each is kept as long
// as its layer is shown, and an image may have hundreds of layers.
const tableBytes = 512 << 20

// tables counts the memory that tables take.
type tables struct {
	most int64

	mu    sync.Mutex
	bytes int64
}

// share is what the table of one layer takes of it.
type share struct {
	all   *tables
	force bool  // containers run from the layer already: it is counted, and never refused
	bytes int64 // guarded by tables.mu
}

// take adds to a share. It fails with lazy.ErrUnsuitable if all shares are too large then.
func (s *share) take(n int64) error {
	s.all.mu.Lock()
	defer s.all.mu.Unlock()
	if !s.force && n > s.all.most-s.all.bytes {
		return fmt.Errorf("%w: the tables of contents of all lazy layers would take more than %d bytes of memory",
			lazy.ErrUnsuitable, s.all.most)
	}
	s.bytes, s.all.bytes = s.bytes+n, s.all.bytes+n
	return nil
}

// settle sets a share to what has turned out to be needed; 0 gives it back.
func (s *share) settle(n int64) {
	s.all.mu.Lock()
	defer s.all.mu.Unlock()
	s.bytes, s.all.bytes = n, s.all.bytes-s.bytes+n
}
