package oci

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/runtime"
)

// consoleSocket is where a command connects to hand over a terminal's master side.
type consoleSocket struct {
	dir *os.File
	l   *net.UnixListener
}

const consoleName = "console"

// listenConsole makes the socket. It is named through a descriptor of its directory, because
// that may be deeper than a socket's path can be long (unix(7)).
func listenConsole(dir string) (*consoleSocket, error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, fmt.Errorf("console socket: %w", err)
	}
	s := &consoleSocket{dir: d}
	s.l, err = net.ListenUnix("unix", &net.UnixAddr{Name: s.path(), Net: "unix"})
	if err != nil {
		d.Close()
		return nil, fmt.Errorf("console socket: %w", err)
	}
	return s, nil
}

func (s *consoleSocket) path() string {
	return filepath.Join("/proc", strconv.Itoa(os.Getpid()), "fd", strconv.Itoa(int(s.dir.Fd())), consoleName)
}

// forward passes the terminal that the command has sent on to console. It is called when the
// command has ended: what it sent waits in the socket.
func (s *consoleSocket) forward(ctx context.Context, console *os.File) error {
	// A command that has succeeded without connecting never will.
	if err := s.l.SetDeadline(time.Now().Add(time.Second)); err != nil {
		return err
	}
	conn, err := s.l.AcceptUnix()
	if err != nil {
		return fmt.Errorf("the command sent no terminal: %w", err)
	}
	defer conn.Close()
	f, err := conn.File()
	if err != nil {
		return err
	}
	defer f.Close()
	tty, err := runtime.ReceiveFile(ctx, f)
	if err != nil {
		return err
	}
	defer tty.Close()
	if err := unix.Sendmsg(int(console.Fd()), []byte(tty.Name()), unix.UnixRights(int(tty.Fd())), nil, 0); err != nil {
		return fmt.Errorf("pass terminal on: %w", err)
	}
	return nil
}

func (s *consoleSocket) close() {
	s.l.Close()
	s.dir.Close()
}
