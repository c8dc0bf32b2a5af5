package boundedconn

import (
	"errors"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"
)

func TestPeerThatDoesNotRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, far := net.Pipe()
		defer far.Close()
		c := New(near, time.Second)
		read := make(chan error)
		go func() {
			_, err := io.ReadFull(far, make([]byte, 2))
			read <- err
		}()
		if _, err := c.Write([]byte("ab")); err != nil || c.Hung() {
			t.Errorf("to a peer that reads: %v", err)
		}
		if err := <-read; err != nil {
			t.Error(err)
		}
		time.Sleep(time.Hour) // an idle connection has no deadline
		before := time.Now()
		if _, err := c.Write([]byte("ab")); !errors.Is(err, io.ErrClosedPipe) || !c.Hung() || time.Since(before) != time.Second {
			t.Errorf("to one that does not: %v, after %s", err, time.Since(before))
		}
		if _, err := far.Read(make([]byte, 1)); err != io.EOF {
			t.Errorf("the connection is not closed: %v", err)
		}
	})
}
