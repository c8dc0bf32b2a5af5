package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/internal/logfile"
	"github.com/coracle-project/coracle/internal/programpages"
)

const (
	// firstPause is before the first restart of the cluster process; each further one waits twice
	// as long, up to longestPause, until it has lived for settled.
	firstPause   = 100 * time.Millisecond
	longestPause = 10 * time.Second
	settled      = 5 * time.Second
	// A process that has lived for served has served its clients, which should not wait for long
	// because of how often it was killed before: leader elections allow for 10 s. If it did not end
	// by itself, it waits for servedPause at most.
	served      = time.Second
	servedPause = time.Second
	// After so many lives, none longer than settled and all ended by an error of its own (a port
	// that is taken, data that cannot be read), the supervisor ends with it, so that up says why.
	mostTries = 7
	// calm is how long after its start the supervisor gives memory back.
	calm = 5 * time.Second
)

// superviseCommand is what up leaves running: the parent of the cluster process.
func superviseCommand(p *place) *cobra.Command {
	var log string
	cmd := &cobra.Command{
		Use:    "supervise -- PROGRAM [ARGS]",
		Short:  "keep the cluster process running",
		Hidden: true, // up starts it
		Args:   cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			lock, err := hold(p.supervisor())
			if err != nil {
				return fmt.Errorf("another supervisor runs this cluster: %w", err)
			}
			defer func() { _ = lock.Close() }()
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGTERM, syscall.SIGINT)
			defer stop()
			// For months it does next to nothing.
			defer time.AfterFunc(calm, slim).Stop()
			if log == "" {
				return supervise(ctx, args, nil)
			}
			file, err := logfile.Open(log)
			if err != nil {
				return err
			}
			defer func() { _ = file.Close() }()
			slog.SetDefault(slog.New(slog.NewTextHandler(file, nil)))
			return supervise(ctx, args, file)
		},
	}
	cmd.Flags().StringVar(&log, "log", "", "file for what both say, kept within bounds")
	return cmd
}

// slim returns to the kernel what a start has needed: all of the program was linked in for other
// commands.
func slim() {
	debug.FreeOSMemory()
	if err := programpages.Drop(); err != nil {
		slog.Debug("more of the program than it uses stays in memory", "err", err)
	}
}

// supervise runs a program again and again until ctx ends, and then ends it. What the program says
// goes to log, or if that is nil to where our own output goes.
//
// It comes through a pipe, whose other end is ours: so no one has to look at how large the log is,
// and it is set aside between two lines. A program whose supervisor is killed is ended, and what it
// still wants to say then is lost.
func supervise(ctx context.Context, args []string, log io.Writer) error {
	// The kernel sends the death signal when the thread that has forked ends: keep this one.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	next := backoff(firstPause)
	failures, worked := 0, false
	for {
		began := time.Now()
		err := once(ctx, args, log)
		if ctx.Err() != nil {
			return err
		}
		if code(err) == exitForGood {
			slog.Error("the cluster process ended and is not started again", "err", err)
			return forGood{fmt.Errorf("the cluster process ended and would end again: %w", err)}
		}
		lived := time.Since(began)
		worked = worked || lived >= settled
		failures++
		if !refused(err) {
			failures = 0
		}
		if !worked && failures == mostTries {
			return fmt.Errorf("the cluster process cannot be started: %w", err)
		}
		pause := next.after(lived, refused(err))
		slog.Error("the cluster process ended and is started again", "err", err, "lived", lived, "pause", pause)
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return nil
		}
	}
}

// backoff is how long the next restart waits, if nothing speaks against it.
type backoff time.Duration

// after returns the pause after a life, which ended by an error that the process reported, or not.
func (b *backoff) after(lived time.Duration, refused bool) time.Duration {
	pause := time.Duration(*b)
	switch {
	case lived >= settled:
		pause = firstPause
	case lived >= served && !refused:
		pause = min(pause, servedPause)
	}
	*b = backoff(min(2*pause, longestPause))
	return pause
}

// once runs a program until it ends, or ctx does. The program does not outlive us, however we end.
func once(ctx context.Context, args []string, log io.Writer) error {
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	if log != nil {
		cmd.Stdout, cmd.Stderr = log, log
	}
	cmd.Env = shallowProfiles(os.Environ())
	cmd.SysProcAttr = &unix.SysProcAttr{Pdeathsig: unix.SIGTERM}
	cmd.Cancel = func() error { return cmd.Process.Signal(unix.SIGTERM) }
	cmd.WaitDelay = 30 * time.Second
	err := cmd.Run()
	if ctx.Err() != nil {
		return nil // however it took the signal
	}
	if err == nil {
		return errors.New("it exited with 0 unexpectedly")
	}
	return err
}

// shallowProfiles adds to the environment of a Go program that its heap profile keeps 32 frames of
// a stack. The default of 128 costs the cluster process up to 3 MB after a burst of work, which it
// never returns. A GODEBUG of the user's wins.
func shallowProfiles(env []string) []string {
	if slices.ContainsFunc(env, func(s string) bool { return strings.HasPrefix(s, "GODEBUG=") }) {
		return env
	}
	return append(env, "GODEBUG=profstackdepth=32")
}

// refused says whether the program ended by itself with the status of an error that it has
// reported: no signal, no panic.
func refused(err error) bool { return code(err) == 1 }

// exitForGood is the exit code of a program that would end in the same way if it was started again:
// of the cluster process, then of its supervisor, and of an up that has started that. systemd does
// not start it again, either (RestartPreventExitStatus).
const exitForGood = 78

// forGood is an error that another try would repeat.
type forGood struct{ error }

func (f forGood) Unwrap() error { return f.error }

// code is the exit code that err is about, -1 if it is about none.
func code(err error) int {
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return exit.ExitCode()
	}
	return -1
}
