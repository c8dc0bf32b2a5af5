package runtime

import (
	"context"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// ConsolePair is a connected pair of unix sockets: the engine sends the master
// side of a new terminal into one end (Stdio.Console), the caller takes it from
// the other.
//
//	pair, err := runtime.NewConsolePair()
//	defer pair.Close()
//	c, err := engine.Create(ctx, id, spec, runtime.CreateOptions{
//		Stdio: runtime.Stdio{Console: pair.EngineEnd()},
//	})
//	master, err := pair.Receive(ctx)
type ConsolePair struct {
	engine, caller *os.File
}

// NewConsolePair makes a pair. Close it when the terminal has been received or
// is no longer wanted.
func NewConsolePair() (*ConsolePair, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("make console socket: %w", err)
	}
	// Only our end is non-blocking, so that Receive can be cancelled.
	if err := unix.SetNonblock(fds[1], true); err != nil {
		_ = unix.Close(fds[0])
		_ = unix.Close(fds[1])
		return nil, fmt.Errorf("make console socket: %w", err)
	}
	return &ConsolePair{
		engine: os.NewFile(uintptr(fds[0]), "console-engine"),
		caller: os.NewFile(uintptr(fds[1]), "console-caller"),
	}, nil
}

// EngineEnd is what goes into Stdio.Console. The pair keeps owning it.
func (p *ConsolePair) EngineEnd() *os.File { return p.engine }

// Receive waits for the terminal's master side. The caller owns the returned
// file, which is non-blocking: its reads and writes can be given deadlines. The
// engine's end is closed first, so that a container that dies before it has sent
// its terminal ends the wait; call Receive after Create or Exec has returned.
func (p *ConsolePair) Receive(ctx context.Context) (*os.File, error) {
	_ = p.engine.Close()
	return ReceiveFile(ctx, p.caller)
}

// Close closes both ends. A second Close is harmless.
func (p *ConsolePair) Close() error {
	_ = p.engine.Close()
	if err := p.caller.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
		return err
	}
	return nil
}

// ReceiveFile takes one file descriptor from the non-blocking unix socket sock.
// It returns when ctx ends.
func ReceiveFile(ctx context.Context, sock *os.File) (*os.File, error) {
	stop := context.AfterFunc(ctx, func() { _ = sock.SetReadDeadline(aLongTimeAgo) })
	defer stop()
	raw, err := sock.SyscallConn()
	if err != nil {
		return nil, fmt.Errorf("receive terminal: %w", err)
	}
	var (
		got    = -1
		rerr   error
		name   [4096]byte
		oob    = make([]byte, unix.CmsgSpace(4))
		nn, on int
	)
	err = raw.Read(func(fd uintptr) bool {
		nn, on, _, _, rerr = unix.Recvmsg(int(fd), name[:], oob, unix.MSG_CMSG_CLOEXEC)
		return !errors.Is(rerr, unix.EAGAIN)
	})
	switch {
	case ctx.Err() != nil:
		return nil, fmt.Errorf("receive terminal: %w", context.Cause(ctx))
	case err != nil:
		return nil, fmt.Errorf("receive terminal: %w", err)
	case rerr != nil:
		return nil, fmt.Errorf("receive terminal: %w", rerr)
	case on == 0 && nn == 0:
		return nil, fmt.Errorf("receive terminal: the process ended before it had sent one: %w", os.ErrClosed)
	}
	msgs, err := unix.ParseSocketControlMessage(oob[:on])
	if err != nil {
		return nil, fmt.Errorf("receive terminal: %w", err)
	}
	for i := range msgs {
		fds, err := unix.ParseUnixRights(&msgs[i])
		if err != nil {
			continue
		}
		for _, fd := range fds {
			if got >= 0 {
				_ = unix.Close(fd)
				continue
			}
			got = fd
		}
	}
	if got < 0 {
		return nil, errors.New("receive terminal: the message holds no file descriptor")
	}
	if err := unix.SetNonblock(got, true); err != nil {
		_ = unix.Close(got)
		return nil, fmt.Errorf("receive terminal: %w", err)
	}
	return os.NewFile(uintptr(got), "terminal"), nil
}
