package apiserver

import (
	"errors"
	"io"
	"log/slog"
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A pod that opens connections without end takes none from others. Without the limit it gets as
// many as it asks for.
func TestAttackOfConnections(t *testing.T) {
	const most, asked = 3, 10
	for name, limited := range map[string]bool{"limited": true, "positive control": false} {
		t.Run(name, func(t *testing.T) {
			plain, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			l := plain
			if limited {
				l = limitPerSource(plain, most, slog.New(slog.DiscardHandler))
			}
			defer l.Close()
			accepted := make(chan net.Conn, 2*asked)
			go func() {
				defer close(accepted)
				for {
					conn, err := l.Accept()
					if err != nil {
						return
					}
					_, _ = io.WriteString(conn, "x")
					accepted <- conn
				}
			}()
			// served dials from an address, and says whether that connection is served.
			served := func(from string) (net.Conn, bool) {
				d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
				conn, err := d.DialContext(t.Context(), "tcp", l.Addr().String())
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = conn.Close() })
				_ = conn.SetDeadline(time.Now().Add(patience))
				_, err = conn.Read(make([]byte, 1))
				if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, unix.ECONNRESET) {
					t.Fatalf("neither served nor closed: %v", err)
				}
				return conn, err == nil
			}
			got := 0
			for range asked {
				if _, ok := served("127.0.0.2"); ok {
					got++
				}
			}
			want := asked
			if limited {
				want = most
			}
			if got != want {
				t.Errorf("the attacker has %d connections of %d, want %d", got, asked, want)
			}
			if _, ok := served("127.0.0.3"); !ok {
				t.Error("another address is not served")
			}
			// One that has ended, however often it is closed, is one more.
			first := <-accepted
			_, _ = first.Close(), first.Close()
			_, one := served("127.0.0.2")
			if _, two := served("127.0.0.2"); !one || two == limited {
				t.Errorf("after one connection has ended, one more is served: %t, and another: %t", one, two)
			}
			_ = l.Close()
			for conn := range accepted {
				_ = conn.Close()
			}
			if s, ok := l.(*perSource); ok && len(s.open) != 0 {
				t.Errorf("counted when all are closed: %v", s.open)
			}
		})
	}
}
