package dns

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// maxConns and maxConnsOfClient bound the connections. A connection takes some 10 kB.
	maxConns, maxConnsOfClient = 256, 32
	// idle is how long a connection may wait for its next query, and slow for the rest of one, or
	// to take a reply (RFC 7766, 6.2.3).
	idle, slow = 10 * time.Second, 5 * time.Second
)

// tcpServer answers queries of connections, of each one after the other.
type tcpServer struct {
	handler  *handler
	listener net.Listener

	mu       sync.Mutex
	conns    map[net.Conn]bool
	ofClient map[netip.Addr]int
	work     sync.WaitGroup
}

func newTCPServer(h *handler, l net.Listener) *tcpServer {
	return &tcpServer{handler: h, listener: l, conns: map[net.Conn]bool{}, ofClient: map[netip.Addr]int{}}
}

// serve accepts connections until the listener is closed, and closes all of them then.
func (s *tcpServer) serve() error {
	defer s.work.Wait()
	defer s.closeAll()
	for {
		conn, err := s.listener.Accept()
		switch {
		case errors.Is(err, net.ErrClosed):
			return nil
		case errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE), errors.Is(err, unix.ENOBUFS), errors.Is(err, unix.ENOMEM):
			time.Sleep(100 * time.Millisecond) // until a descriptor is free
			continue
		case errors.Is(err, unix.ECONNABORTED):
			continue
		case err != nil:
			return fmt.Errorf("accept DNS connections at %s: %w", s.listener.Addr(), err)
		}
		from := addrOf(conn)
		if !s.add(conn, from) {
			conn.Close()
			continue
		}
		s.work.Go(func() {
			defer s.remove(conn, from)
			s.answer(conn, from)
		})
	}
}

func addrOf(conn net.Conn) netip.Addr {
	if a, ok := conn.RemoteAddr().(*net.TCPAddr); ok {
		return a.AddrPort().Addr().Unmap()
	}
	return netip.Addr{}
}

func (s *tcpServer) add(conn net.Conn, from netip.Addr) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.conns) >= maxConns || s.ofClient[from] >= maxConnsOfClient {
		return false
	}
	s.conns[conn] = true
	s.ofClient[from]++
	return true
}

func (s *tcpServer) remove(conn net.Conn, from netip.Addr) {
	conn.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, conn)
	if s.ofClient[from]--; s.ofClient[from] == 0 {
		delete(s.ofClient, from)
	}
}

func (s *tcpServer) closeAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for conn := range s.conns {
		conn.Close()
	}
}

// answer answers the queries of a connection until it is closed, is idle, or breaks the rules.
func (s *tcpServer) answer(conn net.Conn, from netip.Addr) {
	var length [2]byte
	for {
		_ = conn.SetDeadline(time.Now().Add(idle))
		if _, err := io.ReadFull(conn, length[:]); err != nil {
			return
		}
		size := int(binary.BigEndian.Uint16(length[:]))
		if size < headerSize || size > maxQuery {
			return
		}
		query := make([]byte, size)
		_ = conn.SetDeadline(time.Now().Add(slow))
		if _, err := io.ReadFull(conn, query); err != nil {
			return
		}
		reply, ask := s.handler.handle(query, sender{addr: from}, nil)
		if ask != nil {
			reply = ask()
		}
		if reply == nil {
			return
		}
		_ = conn.SetDeadline(time.Now().Add(slow))
		if _, err := conn.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(reply))), reply...)); err != nil {
			return
		}
	}
}
