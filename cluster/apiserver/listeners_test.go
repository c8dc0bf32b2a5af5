package apiserver

import (
	"errors"
	"io"
	"net"
	"testing"

	"golang.org/x/sys/unix"
)

// flaky is a listener whose first Accept fails as that of a process without descriptors does.
type flaky struct {
	net.Listener
	failed bool
}

func (f *flaky) Accept() (net.Conn, error) {
	if !f.failed {
		f.failed = true
		return nil, unix.EMFILE
	}
	return f.Listener.Accept()
}

func TestListenersAreOne(t *testing.T) {
	var all []net.Listener
	for range 2 {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, l)
	}
	l := merge(&flaky{Listener: all[0]}, all[1])
	if l.Addr() != all[0].Addr() {
		t.Errorf("its address is %v, want the first's, %v", l.Addr(), all[0].Addr())
	}
	// The error is the server's to see, and the socket that had it accepts again.
	if _, err := l.Accept(); !errors.Is(err, unix.EMFILE) {
		t.Errorf("the first Accept: %v, want EMFILE", err)
	}
	for i, one := range all {
		client, err := net.Dial("tcp", one.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		conn, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		if conn.LocalAddr().String() != one.Addr().String() {
			t.Errorf("connection %d is to %v, want %v", i, conn.LocalAddr(), one.Addr())
		}
		_, _ = client.Close(), conn.Close()
	}
	// A connection that no one accepts any more is closed, not left open.
	waiting, err := net.Dial("tcp", all[1].Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer waiting.Close()
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Accept afterwards: %v", err)
	}
	if _, err := waiting.Read(make([]byte, 1)); !errors.Is(err, io.EOF) && !errors.Is(err, unix.ECONNRESET) {
		t.Errorf("a connection that was waiting: %v", err)
	}
	for _, one := range all {
		if _, err := one.Accept(); !errors.Is(err, net.ErrClosed) {
			t.Errorf("%v still listens: %v", one.Addr(), err)
		}
	}
	if err := l.Close(); err != nil {
		t.Errorf("a second Close: %v", err)
	}
}
