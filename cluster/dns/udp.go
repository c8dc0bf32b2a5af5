package dns

import (
	"errors"
	"fmt"
	"net"
	"runtime"
	"sync"
)

// receiveBuffer is how much of a burst of queries the kernel keeps.
const receiveBuffer = 1 << 20

// serveUDP answers what comes to conn until it is closed. Most queries are answered where they are
// read, by as many goroutines as there are processors. The socket shares its port with no other:
// a second one there, such as of a pod on the node's network, would get a part of all queries.
func (h *handler) serveUDP(conn *net.UDPConn) error {
	_ = conn.SetReadBuffer(receiveBuffer) // the kernel has a limit
	readers := min(runtime.GOMAXPROCS(0), 4)
	failed := make(chan error, readers)
	var work sync.WaitGroup
	for range readers {
		work.Go(func() { h.readUDP(conn, &work, failed) })
	}
	err := <-failed
	work.Wait()
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return fmt.Errorf("read DNS queries from %s: %w", conn.LocalAddr(), err)
}

// readUDP sends the error that ends it.
func (h *handler) readUDP(conn *net.UDPConn, work *sync.WaitGroup, failed chan<- error) {
	packet, buf := make([]byte, maxQuery+1), make([]byte, payload)
	for {
		n, from, err := conn.ReadFromUDPAddrPort(packet)
		if err != nil {
			failed <- err
			conn.Close() // the other readers end, too, after this
			return
		}
		reply, ask := h.handle(packet[:n], sender{addr: from.Addr().Unmap(), udp: true}, buf)
		if ask != nil {
			work.Go(func() {
				if reply := ask(); reply != nil {
					_, _ = conn.WriteToUDPAddrPort(reply, from) // the client asks again
				}
			})
			continue
		}
		if reply != nil {
			_, _ = conn.WriteToUDPAddrPort(reply, from)
		}
	}
}
