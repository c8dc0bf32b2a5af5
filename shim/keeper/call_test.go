package keeper

import (
	"encoding/binary"
	"errors"
	"os"
	"syscall"
	"testing"
	"time"
)

// A process that did not run for longer than Timeout after its request accepts the answer that has
// arrived meanwhile. It does not consider the keeper hung.
func TestLateForTheAnswer(t *testing.T) {
	dir := t.TempDir()
	l, err := Listen(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	served := make(chan error, 1)
	go func() {
		c, err := l.AcceptUnix()
		if err != nil {
			served <- err
			return
		}
		defer c.Close()
		b := make([]byte, 100)
		_, err = c.Read(b) // INFO
		_, werr := c.Write(append(binary.NativeEndian.AppendUint32(nil, ^uint32(syscall.ENOSYS)+1), 0, 0, 0, 0))
		_, aerr := c.Write(append(binary.NativeEndian.AppendUint32(nil, 0), 42, 0, 0, 0)) // answers a later call
		served <- errors.Join(err, werr, aerr)
		_, _ = c.Read(b) // end of file
	}()
	k, err := Dial(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	if err := <-served; err != nil {
		t.Fatal(err)
	}
	if err := k.conn.SetDeadline(time.Unix(1, 0)); err != nil {
		t.Fatal(err)
	}
	if n, _, _, err := k.receive(nil); err != nil || n != 8 || k.buf[4] != 42 {
		t.Errorf("the answer that has come: %v, %v", k.buf[:n], err)
	}
	if err := k.conn.SetDeadline(time.Unix(1, 0)); err != nil {
		t.Fatal(err)
	}
	if n, _, _, err := k.receive(nil); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("no answer: %d bytes, %v", n, err)
	}
}
