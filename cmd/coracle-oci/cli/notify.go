package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// A service of Type=notify tells systemd that it is ready with a datagram to the socket
// that NOTIFY_SOCKET names (sd_notify(3)). In a container that socket is out of reach and
// its pids are others. So the container gets a socket of its own, and what comes through
// it is passed on with the pid that systemd knows.

const (
	notifyInContainer = "/run/notify"
	notifyName        = "notify.sock"
	// notifyPrefix starts the name of the directory with the socket, in the state
	// directory; no container can have such an id.
	notifyPrefix = "~notify-"
	// barrierTimeout is how long systemd may take to handle what was sent.
	barrierTimeout = 30 * time.Second
)

// notifier passes on that a container is ready. A nil one does nothing.
type notifier struct {
	host string // systemd's socket
	dir  string
	made bool          // the directory; else there was one, of a container with this id
	sock *net.UnixConn // nil until listen
}

// newNotifier is nil when no one waits. A spec, if given, gets the socket: start has none.
func (a *app) newNotifier(id string, spec *specs.Spec) (*notifier, error) {
	host := os.Getenv("NOTIFY_SOCKET")
	if host == "" {
		return nil, nil
	}
	n := &notifier{host: host, dir: a.notifyDir(id)}
	if spec == nil {
		return n, nil
	}
	if err := os.MkdirAll(a.root, 0o700); err != nil {
		return nil, err
	}
	// World readable: the container's user may be any.
	err := os.Mkdir(n.dir, 0o755)
	if err != nil && !errors.Is(err, os.ErrExist) {
		return nil, fmt.Errorf("make directory of notify socket: %w", err)
	}
	n.made = err == nil
	spec.Mounts = append(spec.Mounts, specs.Mount{
		Destination: notifyInContainer, Type: "bind", Source: n.dir,
		Options: []string{"bind", "nosuid", "noexec", "nodev", "ro"},
	})
	spec.Process.Env = envOf(spec.Process, "NOTIFY_SOCKET="+filepath.Join(notifyInContainer, notifyName))
	return n, nil
}

func (a *app) notifyDir(id string) string { return filepath.Join(a.root, notifyPrefix+id) }

// listen makes the socket. Without the directory the container was made without one.
func (n *notifier) listen() error {
	if n == nil {
		return nil
	}
	path := filepath.Join(n.dir, notifyName)
	sock, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		return fmt.Errorf("make notify socket: %w", err)
	}
	if err := os.Chmod(path, 0o777); err != nil {
		return errors.Join(err, sock.Close())
	}
	n.sock = sock
	return nil
}

// forwardReady waits until the container says READY=1 or its process pid ends, and passes
// it on with mainPid. It closes the socket.
func (n *notifier) forwardReady(ctx context.Context, pid, mainPid int) error {
	if n == nil || n.sock == nil {
		return nil
	}
	defer n.sock.Close()
	ctx, stop, err := untilExit(ctx, pid)
	if err != nil {
		return err
	}
	defer stop()
	defer context.AfterFunc(ctx, func() { _ = n.sock.SetReadDeadline(time.Unix(1, 0)) })()
	for buf := make([]byte, 64<<10); ; {
		size, err := n.sock.Read(buf)
		if ctx.Err() != nil {
			return nil // it ended without
		}
		if err != nil {
			return fmt.Errorf("read notify socket: %w", err)
		}
		for line := range bytes.SplitSeq(buf[:size], []byte("\n")) {
			if bytes.HasPrefix(line, []byte("READY=")) {
				return n.tellHost(line, mainPid)
			}
		}
	}
}

// tellHost sends the three messages that make systemd watch mainPid.
func (n *notifier) tellHost(ready []byte, mainPid int) error {
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: n.host, Net: "unixgram"})
	if err != nil {
		return fmt.Errorf("connect to NOTIFY_SOCKET: %w", err)
	}
	defer conn.Close()
	if _, err := conn.Write(append(bytes.Clone(ready), '\n')); err != nil {
		return fmt.Errorf("write to NOTIFY_SOCKET: %w", err)
	}
	if _, err := fmt.Fprintf(conn, "MAINPID=%d\n", mainPid); err != nil {
		return fmt.Errorf("write to NOTIFY_SOCKET: %w", err)
	}
	return barrier(conn)
}

// barrier waits until all that was sent is handled: the receiver closes the pipe that
// comes with BARRIER=1 (sd_notify_barrier(3)). One that does not know it is not waited
// for longer than barrierTimeout.
func barrier(conn *net.UnixConn) error {
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	defer r.Close()
	// net sends no descriptors through a connected datagram socket.
	raw, err := conn.SyscallConn()
	if err != nil {
		return errors.Join(err, w.Close())
	}
	var sendErr error
	err = raw.Control(func(fd uintptr) {
		sendErr = unix.Sendmsg(int(fd), []byte("BARRIER=1"), unix.UnixRights(int(w.Fd())), nil, 0)
	})
	if err := errors.Join(err, sendErr, w.Close()); err != nil {
		return fmt.Errorf("write to NOTIFY_SOCKET: %w", err)
	}
	if err := r.SetReadDeadline(time.Now().Add(barrierTimeout)); err != nil {
		return err
	}
	_, _ = r.Read(make([]byte, 1))
	return nil
}

// remove takes the socket away if this notifier has made it.
func (n *notifier) remove() error {
	if n == nil || !n.made {
		return nil
	}
	return os.RemoveAll(n.dir)
}

// untilExit gives a context that ends with process pid.
func untilExit(ctx context.Context, pid int) (context.Context, func(), error) {
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if err != nil {
		return nil, nil, fmt.Errorf("pidfd_open %d: %w", pid, err)
	}
	f := os.NewFile(uintptr(fd), "pidfd")
	raw, err := f.SyscallConn()
	if err != nil {
		return nil, nil, errors.Join(err, f.Close())
	}
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		defer cancel()
		// Ends when the process has, or with the file.
		_ = raw.Read(func(fd uintptr) bool {
			p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
			n, err := unix.Poll(p, 0)
			return n > 0 || err != nil
		})
	}()
	return ctx, func() { cancel(); _ = f.Close() }, nil
}
