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
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/internal/logfile"
	"github.com/coracle-project/coracle/internal/programpages"
)

const (
	// firstPause is before the first restart of a program. The pause doubles with each restart, up
	// to longestPause. It is firstPause again for a program that has run for settled.
	firstPause   = 100 * time.Millisecond
	longestPause = 10 * time.Second
	settled      = 5 * time.Second
	// The clients of a process that has run for served should not wait long because it was killed
	// often before: leader elections allow for 10 s. Unless it ended by itself, the pause is
	// servedPause at most.
	served      = time.Second
	servedPause = time.Second
	// The supervisor ends after so many runs in a row that were all shorter than settled and ended
	// by an error of the program (a port that is taken, data that cannot be read), so that up says
	// why.
	mostTries = 7
	// calm is how long after its start the supervisor gives memory back.
	calm = 5 * time.Second
)

// superviseCommand is what up leaves running: the parent of the cluster process, and of coracle-bgp
// if there is one.
func superviseCommand(p *place) *cobra.Command {
	var logs []string
	var gated bool
	cmd := &cobra.Command{
		Use:    "supervise -- PROGRAM [ARGS] [-- PROGRAM [ARGS]]",
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
			log := slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), nil))
			programs := supervised(args)
			if gated {
				if programs[0].gate, err = inheritedGate(); err != nil {
					return err
				}
			}
			for k, path := range logs[:min(len(logs), len(programs))] {
				file, err := logfile.Open(path)
				if err != nil {
					return err
				}
				defer func() { _ = file.Close() }()
				programs[k].log = file
				if k == 0 {
					log = slog.New(slog.NewTextHandler(file, nil))
				}
			}
			// For months it does next to nothing.
			defer time.AfterFunc(calm, func() { slim(log) }).Stop()
			return superviseAll(ctx, programs, log)
		},
	}
	cmd.Flags().StringArrayVar(&logs, "log", nil,
		"file for what the first program and the supervisor say, kept within bounds; again for the second program")
	cmd.Flags().BoolVar(&gated, "gate", false, "descriptor 3 is where the first program waits until it may begin, descriptor 4 tells when it may")
	return cmd
}

// program is what a supervisor runs.
type program struct {
	args []string
	// log is where its output goes; nil is where our own goes.
	log io.Writer
	// gate is where the program waits in its first life, nil for nowhere.
	gate *farGate
	// optional is for a program whose failure does not end the supervisor.
	optional bool
}

// farGate is the supervisor's part of a gate: the program's end, and the pipe that has a byte when
// the gate was opened.
type farGate struct{ file, ordered *os.File }

func inheritedGate() (*farGate, error) {
	const program, pipe = 3, 4
	unix.CloseOnExec(program)
	unix.CloseOnExec(pipe)
	if err := unix.SetNonblock(pipe, true); err != nil {
		return nil, fmt.Errorf("the pipe of the gate: %w", err)
	}
	return &farGate{file: os.NewFile(program, "gate"), ordered: os.NewFile(pipe, "pipe of the gate")}, nil
}

// opened is whether the gate was opened. The starter has done so before the program notices.
func (g *farGate) opened() bool {
	conn, err := g.ordered.SyscallConn()
	if err != nil {
		return false
	}
	n := 0
	_ = conn.Read(func(fd uintptr) bool {
		n, _ = unix.Read(int(fd), make([]byte, 1))
		return true // it does not wait
	})
	return n == 1
}

// supervised are the programs in the arguments of supervise. All but the first are optional.
func supervised(args []string) []program {
	programs := []program{{}}
	for _, arg := range args {
		if arg == "--" {
			programs = append(programs, program{optional: true})
			continue
		}
		last := &programs[len(programs)-1]
		last.args = append(last.args, arg)
	}
	return slices.DeleteFunc(programs, func(p program) bool { return len(p.args) == 0 })
}

// superviseAll runs programs until ctx ends, or the first cannot be started.
func superviseAll(ctx context.Context, programs []program, log *slog.Logger) error {
	ctx, cancel := context.WithCancel(ctx)
	var others sync.WaitGroup
	defer others.Wait()
	defer cancel()
	for _, p := range programs[1:] {
		others.Go(func() { _ = p.supervise(ctx, log) }) // it returns when ctx has ended, and has logged all before
	}
	return programs[0].supervise(ctx, log)
}

// slim returns to the kernel what a start has needed: all of the program was linked in for other
// commands.
func slim(log *slog.Logger) {
	debug.FreeOSMemory()
	if err := programpages.Drop(); err != nil {
		log.Debug("more of the program than it uses stays in memory", "err", err)
	}
}

// supervise restarts a program until ctx ends, and then ends it.
//
// The program writes its log into a pipe, which the supervisor reads: so the supervisor knows the
// size of the log, and rotates it between two lines. If the supervisor is killed, the kernel ends
// the program, whose last messages are lost.
func (p program) supervise(ctx context.Context, log *slog.Logger) error {
	// The kernel sends the death signal when the thread that has forked ends: keep this one.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	name := "the cluster process"
	if p.optional {
		name = filepath.Base(p.args[0])
	}
	next := backoff(firstPause)
	failures, worked := 0, p.optional
	gate := p.gate
	for {
		began := time.Now()
		err := p.once(ctx, gate)
		if ctx.Err() != nil {
			return err
		}
		if gate != nil {
			if !gate.opened() && code(err) != exitRefused {
				return fmt.Errorf("%s ended before it was to start: %w", name, err)
			}
			_ = gate.ordered.Close()
			gate = nil
		}
		if code(err) == exitRefused {
			return fmt.Errorf("%s did not start: its flags were refused, or up has ended: %w", name, err)
		}
		if !p.optional && code(err) == exitForGood {
			log.Error(name+" ended and is not started again", "err", err)
			return forGood{fmt.Errorf("%s ended and would end again: %w", name, err)}
		}
		lived := time.Since(began)
		worked = worked || lived >= settled
		failures++
		if !refused(err) {
			failures = 0
		}
		if !worked && failures == mostTries {
			return fmt.Errorf("%s cannot be started: %w", name, err)
		}
		pause := next.after(lived, refused(err))
		log.Error(name+" ended and is started again", "err", err, "lived", lived, "pause", pause)
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return nil
		}
	}
}

// backoff is the next pause before a restart.
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

// once runs a program until it ends, or ctx does. It closes the gate, if there is one. The program
// does not outlive us, however we end.
func (p program) once(ctx context.Context, gate *farGate) error {
	args := p.args[1:]
	if gate != nil {
		args = append(slices.Clone(args), gateFlag)
	}
	cmd := exec.CommandContext(ctx, p.args[0], args...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	if p.log != nil {
		cmd.Stdout, cmd.Stderr = p.log, p.log
	}
	cmd.Env = shallowProfiles(os.Environ())
	if gate != nil {
		cmd.ExtraFiles, cmd.Env = []*os.File{gate.file}, append(cmd.Env, gateVariable+"=3")
	}
	cmd.SysProcAttr = &unix.SysProcAttr{Pdeathsig: unix.SIGTERM}
	cmd.Cancel = func() error { return cmd.Process.Signal(unix.SIGTERM) }
	cmd.WaitDelay = 30 * time.Second
	err := cmd.Start()
	if gate != nil {
		_ = gate.file.Close() // the starter notices the end of the program by the end of the connection
	}
	if err == nil {
		err = cmd.Wait()
	}
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

// exitForGood is the exit code of a program that would fail in the same way if it was restarted.
// The cluster process, its supervisor and the up that has started them pass it on, and systemd does
// not restart them (RestartPreventExitStatus).
const exitForGood = 78

// forGood is an error that a restart would repeat.
type forGood struct{ error }

func (f forGood) Unwrap() error { return f.error }

// code is the exit code in err, -1 without one.
func code(err error) int {
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return exit.ExitCode()
	}
	return -1
}
