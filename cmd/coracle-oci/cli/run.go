package cli

import (
	"context"
	"errors"

	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/runtime"
)

func (a *app) runCommand() *cobra.Command {
	var (
		m      makeFlags
		l      life
		detach bool
	)
	cmd := &cobra.Command{
		Use:   "run [flags] ID",
		Short: "Create a container, start it, wait for it and delete it",
		Long: `run creates a container and starts its program. In the foreground it forwards
signals, exits with the program's exit status (128 + number for a signal) and
deletes the container. With --detach it returns when the program runs.`,
		Example: `  coracle-oci run --bundle box mine
  coracle-oci run --detach --bundle box --pid-file pid mine`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			a.watch.lap("read the arguments")
			spec, bundle, err := m.load()
			if err != nil {
				return err
			}
			a.watch.lap("read and check config.json")
			ctx := cmd.Context()
			if l.notify, err = a.newNotifier(args[0], spec); err != nil {
				return err
			}
			if err := l.notify.listen(); err != nil {
				return err
			}
			l.process, l.flags = spec.Process, &m
			l.make = func(stdio runtime.Stdio) (runtime.Container, error) {
				return a.make(ctx, args[0], spec, bundle, &m, stdio)
			}
			l.start = func(c runtime.Container) error { return c.Start(ctx) }
			if detach {
				return a.runDetached(ctx, &l)
			}
			return a.runForeground(ctx, &l)
		},
	}
	m.add(cmd)
	cmd.Flags().BoolVarP(&detach, "detach", "d", false, "do not wait for the program")
	cmd.Flags().BoolVar(&l.keep, "keep", false, "do not delete the container when its program has ended")
	cmd.Flags().BoolVar(&l.noSubreaper, "no-subreaper", false, "do not reap the container's orphans")
	return cmd
}

// life is a container from its making on: that of run, or that of restore, which makes
// it with its processes running.
type life struct {
	process           *specs.Process
	flags             *makeFlags
	make              func(runtime.Stdio) (runtime.Container, error)
	start             func(runtime.Container) error
	notify            *notifier // nil: no one waits for READY=1
	keep, noSubreaper bool
}

func (a *app) runDetached(ctx context.Context, l *life) error {
	stdio, done, err := a.detachedStdio(l.process, l.flags.consoleSocket, l.flags.preserveFDs)
	if err != nil {
		return errors.Join(err, l.notify.remove())
	}
	defer done()
	c, err := l.make(stdio)
	if err != nil {
		return errors.Join(err, l.notify.remove())
	}
	a.watch.lap("create")
	pid := c.Pid()
	if err := l.start(c); err != nil {
		return errors.Join(err, a.delete(ctx, c, runtime.DeleteOptions{Force: true}))
	}
	a.watch.lap("start")
	return l.notify.forwardReady(ctx, pid, pid)
}

func (a *app) runForeground(ctx context.Context, l *life) (err error) {
	if !l.noSubreaper {
		if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
			return err
		}
	}
	fg, err := a.foreground(l.process, l.flags.consoleSocket, l.flags.preserveFDs)
	if err != nil {
		return errors.Join(err, l.notify.remove())
	}
	defer fg.close()
	a.watch.lap("take signals and streams")
	c, err := l.make(fg.stdio)
	if err != nil {
		return errors.Join(err, l.notify.remove())
	}
	a.watch.lap("create")
	pid := c.Pid()
	defer func() {
		a.watch.lap("the program runs and ends")
		if !l.keep {
			err = errors.Join(err, a.delete(ctx, c, runtime.DeleteOptions{Force: true}))
		}
		a.watch.lap("delete")
	}()
	if err := fg.attach(ctx); err != nil {
		return err
	}
	if err := l.start(c); err != nil {
		return err
	}
	a.watch.lap("start")
	a.dismissStarter()
	// Our parent watches this program, not the container's.
	if l.notify != nil {
		go func() {
			if err := l.notify.forwardReady(ctx, pid, unix.Getpid()); err != nil {
				a.log.slog.Warn("READY=1 not forwarded", "container", c.ID(), "err", err)
			}
		}()
	}
	return fg.wait(pid)
}
