package main

import (
	"context"
	"errors"
	"os"
	"os/signal"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/runtime"
)

// foreground connects this program's standard streams and signals with one
// process of a container. Order of use: foreground, start the process with its
// stdio, attach, wait, close.
type foreground struct {
	stdio    runtime.Stdio
	pair     *runtime.ConsolePair // nil without a terminal
	terminal *terminal            // nil before attach and without a terminal
	signals  chan os.Signal
}

func (a *app) foreground(p *specs.Process, preserve int) (*foreground, error) {
	files, err := inheritedFiles(p, preserve)
	if err != nil {
		return nil, err
	}
	f := &foreground{signals: make(chan os.Signal, 128)}
	// From now on, so that no signal that comes while the container is made
	// ends this program and leaves the container behind.
	signal.Notify(f.signals)
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
	ended := make(chan int, 1)
	go func() { ended <- reapUntil(pid) }()
	for {
		select {
		case code := <-ended:
			if f.terminal != nil {
				f.terminal.drain()
			}
			if code != 0 {
				return &exitError{code: code}
			}
			return nil
		case s := <-f.signals:
			f.forward(pid, s)
		}
	}
}

func (f *foreground) forward(pid int, s os.Signal) {
	switch s {
	case unix.SIGCHLD, unix.SIGPIPE, unix.SIGURG: // ours, SIGURG is Go's preemption
	case unix.SIGWINCH:
		if f.terminal != nil {
			f.terminal.resize()
		}
	default:
		// The process may be gone; then wait is about to end.
		_ = unix.Kill(pid, s.(unix.Signal))
	}
}

// reapUntil reaps children until pid, and returns its exit status.
func reapUntil(pid int) int {
	for {
		var ws unix.WaitStatus
		got, err := unix.Wait4(-1, &ws, 0, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return 255
		case got == pid && ws.Signaled():
			return 128 + int(ws.Signal())
		case got == pid && ws.Exited():
			return ws.ExitStatus()
		}
	}
}

func (f *foreground) close() {
	signal.Stop(f.signals)
	if f.terminal != nil {
		f.terminal.close()
	}
	if f.pair != nil {
		_ = f.pair.Close()
	}
}
