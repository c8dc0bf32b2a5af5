package apiserver

import (
	"log/slog"
	"net"
	"net/netip"
	"sync"
)

// podConnections is how many connections a pod may have to the API server at a time. A client's
// informers share one or a few. Each connection takes memory, and a descriptor of the process that
// also is the node's kubelet and etcd.
const podConnections = 1000

// perSource is a listener that closes connections beyond so many of one address. Pods cannot send
// with an address that is not theirs, so that a pod that opens connections without end takes them
// from itself only.
type perSource struct {
	net.Listener
	most int
	log  *slog.Logger

	mu   sync.Mutex
	open map[netip.Addr]*source
}

// source is an address with connections.
type source struct {
	connections int
	warned      bool // since it had none
}

func limitPerSource(l net.Listener, most int, log *slog.Logger) net.Listener {
	return &perSource{Listener: l, most: most, log: log, open: map[netip.Addr]*source{}}
}

// Accept implements net.Listener.
func (l *perSource) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		from := conn.RemoteAddr().(*net.TCPAddr).AddrPort().Addr().Unmap()
		if l.take(from) {
			return &counted{Conn: conn, release: sync.OnceFunc(func() { l.release(from) })}, nil
		}
		_ = conn.Close()
	}
}

func (l *perSource) take(from netip.Addr) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.open[from]
	if s == nil {
		s = &source{}
		l.open[from] = s
	}
	if s.connections < l.most {
		s.connections++
		return true
	}
	if !s.warned {
		l.log.Warn("the API server takes no more connections of a pod until some end", "address", from, "connections", l.most)
	}
	s.warned = true
	return false
}

func (l *perSource) release(from netip.Addr) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open[from].connections--; l.open[from].connections == 0 {
		delete(l.open, from)
	}
}

// counted is a connection that counts until it is closed.
type counted struct {
	net.Conn
	release func()
}

// Close implements net.Conn.
func (c *counted) Close() error {
	defer c.release()
	return c.Conn.Close()
}
