package cli

import (
	"errors"
	"io"
	"os"
	"time"

	"github.com/containerd/console"
	"golang.org/x/sys/unix"
)

// terminal joins a container's terminal with the one this program runs in. If
// it runs in none, bytes are still copied.
type terminal struct {
	master *os.File
	own    console.Console // nil: none
	done   chan struct{}   // closed when all output is copied
}

// openTerminal takes master over and starts copying.
func openTerminal(master *os.File) (*terminal, error) {
	t := &terminal{master: master, done: make(chan struct{})}
	for _, f := range []*os.File{os.Stdin, os.Stdout, os.Stderr} {
		if c, err := console.ConsoleFromFile(f); err == nil {
			t.own = c
			break
		}
	}
	if t.own != nil {
		if err := t.own.SetRaw(); err != nil {
			_ = master.Close()
			return nil, err
		}
		t.resize()
	}
	// Our own terminal, if there is one, puts the carriage return before a newline; a file or
	// pipe is to get what the program has written.
	if err := clearONLCR(master); err != nil {
		t.close()
		return nil, err
	}
	go func() { _, _ = io.Copy(master, os.Stdin) }() // ends with the program
	go func() {
		defer close(t.done)
		// Ends with EIO when the last process has closed the other side, or in drain.
		_, _ = io.Copy(os.Stdout, master)
	}()
	return t, nil
}

func clearONLCR(master *os.File) error {
	raw, err := master.SyscallConn()
	if err != nil {
		return err
	}
	var clearErr error
	err = raw.Control(func(fd uintptr) { clearErr = console.ClearONLCR(fd) })
	return errors.Join(err, clearErr)
}

// resize gives the container's terminal the size of ours. A size that cannot be
// read or set stays.
func (t *terminal) resize() {
	if t.own == nil {
		return
	}
	size, err := t.own.Size()
	if err != nil {
		return
	}
	raw, err := t.master.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Control(func(fd uintptr) {
		_ = unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, &unix.Winsize{Row: size.Height, Col: size.Width})
	})
}

// drain copies what the ended process has written. Other processes may keep the
// terminal open and must not keep us: it ends when nothing has come for a while.
func (t *terminal) drain() {
	_ = t.master.SetReadDeadline(time.Now())
	<-t.done
	for buf := make([]byte, 32<<10); ; {
		_ = t.master.SetReadDeadline(time.Now().Add(drainIdle))
		n, err := t.master.Read(buf)
		_, _ = os.Stdout.Write(buf[:n])
		if err != nil {
			return
		}
	}
}

// drainIdle is how long a byte may take from the terminal's one side to the other.
const drainIdle = 100 * time.Millisecond

func (t *terminal) close() {
	_ = t.master.Close()
	if t.own != nil {
		_ = t.own.Reset()
	}
}
