// Package boundedconn limits how long a write to a connection waits for a peer that does not read.
package boundedconn

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync/atomic"
	"time"
)

// Conn closes the connection when the peer stops reading. ttrpc holds a lock while it writes and
// ignores contexts, so one blocked write would block all other calls forever.
type Conn struct {
	net.Conn
	patience time.Duration
	hung     atomic.Bool
}

// New limits each write to c.
func New(c net.Conn, patience time.Duration) *Conn { return &Conn{Conn: c, patience: patience} }

// Hung reports whether the connection was closed because the peer does not read. What ttrpc says of
// that is the same as of a peer that has gone.
func (c *Conn) Hung() bool { return c.hung.Load() }

func (c *Conn) Write(b []byte) (int, error) {
	if err := c.SetWriteDeadline(time.Now().Add(c.patience)); err != nil {
		return 0, err
	}
	n, err := c.Conn.Write(b)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		c.hung.Store(true)
		c.Close()
		return n, fmt.Errorf("shim takes no requests: %w", io.ErrClosedPipe)
	}
	return n, errors.Join(err, c.SetWriteDeadline(time.Time{})) // no timer on an idle node
}
