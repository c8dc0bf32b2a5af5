package apiserver

import (
	"context"
	"log/slog"
	"net"
	"sync"
	"time"
)

const (
	// leaderEvery is how often a member with peers looks whether there is a leader, and leaderless
	// how long there may be none before clients are sent to other servers: elections are shorter.
	leaderEvery = time.Second
	leaderless  = 3 * time.Second
)

// cutOff ends the connections of clients when this server has had no quorum for a while. Without
// it they would go on with a server that answers nothing, and whose watches are silent, though
// other servers have a quorum. Who connects again asks /readyz.
type cutOff struct {
	net.Listener
	log *slog.Logger

	mu    sync.Mutex
	conns map[net.Conn]bool
}

func newCutOff(l net.Listener, log *slog.Logger) *cutOff {
	return &cutOff{Listener: l, log: log, conns: map[net.Conn]bool{}}
}

// Accept implements net.Listener.
func (c *cutOff) Accept() (net.Conn, error) {
	conn, err := c.Listener.Accept()
	if err != nil {
		return nil, err
	}
	tracked := &trackedConn{Conn: conn, of: c}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.conns[tracked] = true
	return tracked, nil
}

type trackedConn struct {
	net.Conn
	of *cutOff
}

func (t *trackedConn) Close() error {
	t.of.mu.Lock()
	delete(t.of.conns, t)
	t.of.mu.Unlock()
	return t.Conn.Close()
}

// run looks until ctx ends. leads says whether there is a leader.
func (c *cutOff) run(ctx context.Context, leads func() bool) {
	tick := time.NewTicker(leaderEvery)
	defer tick.Stop()
	last, cut := time.Now(), false
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		switch {
		case leads():
			last, cut = time.Now(), false
		case !cut && time.Since(last) >= leaderless:
			cut = true
			c.log.Warn("etcd has no leader: clients have to go to other API servers", "connections", c.end())
		}
	}
}

// end closes all connections, and returns how many there were.
func (c *cutOff) end() int {
	c.mu.Lock()
	all := c.conns
	c.conns = map[net.Conn]bool{}
	c.mu.Unlock()
	for conn := range all {
		_ = conn.Close()
	}
	return len(all)
}
