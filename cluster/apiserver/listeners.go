package apiserver

import (
	"errors"
	"net"
	"sync"
)

// listeners accepts from several sockets as from one, whose address is that of the first.
//
// k8s.io/utils/net has MultiListen for this, which gives up a socket for good at its first error. A
// process that is short of descriptors for a moment would never accept there again.
type listeners struct {
	accepted chan accepted
	closing  chan struct{}
	close    func() error // of the first call
	loops    sync.WaitGroup

	mu     sync.Mutex
	all    []net.Listener
	closed bool
}

// accepted is what one call of Accept returned.
type accepted struct {
	conn net.Conn
	err  error
}

// merge returns a listener that accepts what any of all does, and closes them.
func merge(all ...net.Listener) *listeners {
	l := &listeners{accepted: make(chan accepted), closing: make(chan struct{})}
	l.close = sync.OnceValue(func() error {
		close(l.closing)
		l.mu.Lock()
		l.closed = true
		var errs []error
		for _, one := range l.all {
			errs = append(errs, one.Close())
		}
		l.mu.Unlock()
		l.loops.Wait()
		return errors.Join(errs...)
	})
	for _, one := range all {
		l.add(one)
	}
	return l
}

// add has l accept from a further socket. If l is closed, it closes that.
func (l *listeners) add(one net.Listener) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		_ = one.Close()
		return
	}
	l.all = append(l.all, one)
	l.loops.Go(func() { l.acceptFrom(one) })
}

// acceptFrom passes on what one listener accepts until the listeners are closed. Its errors go to
// the server, which waits between those that pass.
func (l *listeners) acceptFrom(one net.Listener) {
	for {
		conn, err := one.Accept()
		select {
		case l.accepted <- accepted{conn, err}:
		case <-l.closing:
			if conn != nil {
				_ = conn.Close()
			}
			return
		}
		if errors.Is(err, net.ErrClosed) {
			return
		}
	}
}

// Accept implements net.Listener.
func (l *listeners) Accept() (net.Conn, error) {
	select {
	case a := <-l.accepted:
		return a.conn, a.err
	case <-l.closing:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (l *listeners) Close() error { return l.close() }

// Addr implements net.Listener.
func (l *listeners) Addr() net.Addr {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all[0].Addr()
}
