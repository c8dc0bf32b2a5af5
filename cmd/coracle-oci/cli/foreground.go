package cli

import (
	"context"
	"errors"
	"os"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/cmd/coracle-oci/cli/signals"
	"github.com/coracle-project/coracle/runtime"
)

// foreground connects this program's standard streams and signals with one
// process of a container. Order of use: foreground, start the process with its
// stdio, attach, wait, close.
type foreground struct {
	stdio    runtime.Stdio
	pair     *runtime.ConsolePair // nil without a terminal
	terminal *terminal            // nil before attach and without a terminal
	signals  int                  // a descriptor that signals can be read from
}

func (a *app) foreground(p *specs.Process, consoleSocket string, preserve int) (*foreground, error) {
	if consoleSocket != "" {
		return nil, errors.New("--console-socket is only for --detach; in the foreground the terminal is this one")
	}
	files, err := inheritedFiles(p, preserve)
	if err != nil {
		return nil, err
	}
	// From now on, so that none that comes while the container is made ends this program and
	// leaves the container behind. No one gives them back: the program ends.
	caught, err := signals.Take()
	if err != nil {
		return nil, err
	}
	f := &foreground{signals: caught}
	if !p.Terminal {
		f.stdio = runtime.Stdio{Stdin: a.stdin, Stdout: os.Stdout, Stderr: os.Stderr, Files: files}
		return f, nil
	}
	if f.pair, err = runtime.NewConsolePair(); err != nil {
		f.close()
		return nil, err
	}
	f.stdio = runtime.Stdio{Console: f.pair.EngineEnd(), Files: files}
	return f, nil
}

// attach takes over the process's terminal, if it has one.
func (f *foreground) attach(ctx context.Context) error {
	if f.pair == nil {
		return nil
	}
	master, err := f.pair.Receive(ctx)
	if err != nil {
		return err
	}
	f.terminal, err = openTerminal(master)
	return err
}

// wait forwards signals until pid has ended, and reaps it and all other children
// that end before. The error is an exitError with its exit status, nil for 0.
func (f *foreground) wait(pid int) error {
	for {
		// A child that ends from here on has the next poll return, by SIGCHLD.
		if code, ended := reapUntil(pid); ended {
			if f.terminal != nil {
				f.terminal.drain()
			}
			if code != 0 {
				return &exitError{code: code}
			}
			return nil
		}
		f.forwardAll(pid)
	}
}

// forwardAll waits for signals and forwards them.
func (f *foreground) forwardAll(pid int) {
	// Not left to Go's poller, which would take two more threads.
	_, _ = unix.Poll([]unix.PollFd{{Fd: int32(f.signals), Events: unix.POLLIN}}, -1)
	var came [64]byte
	n, _ := unix.Read(f.signals, came[:]) // EAGAIN, EINTR: the next time
	for _, s := range came[:max(n, 0)] {
		f.forward(pid, unix.Signal(s))
	}
}

func (f *foreground) forward(pid int, s unix.Signal) {
	switch s {
	case unix.SIGCHLD, unix.SIGPIPE: // ours
	case unix.SIGWINCH:
		if f.terminal != nil {
			f.terminal.resize()
		}
	default:
		// The process may be gone; then wait is about to end.
		_ = unix.Kill(pid, s)
	}
}

// reapUntil reaps children that have ended; ended says that pid is among them, and code is its exit
// status.
func reapUntil(pid int) (code int, ended bool) {
	for {
		var ws unix.WaitStatus
		got, err := unix.Wait4(-1, &ws, unix.WNOHANG, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return 255, true
		case got == 0:
			return 0, false
		case got == pid && ws.Signaled():
			return 128 + int(ws.Signal()), true
		case got == pid && ws.Exited():
			return ws.ExitStatus(), true
		}
	}
}

func (f *foreground) close() {
	if f.terminal != nil {
		f.terminal.close()
	}
	if f.pair != nil {
		_ = f.pair.Close()
	}
}
