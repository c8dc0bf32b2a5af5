package main

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
		m                         makeFlags
		detach, keep, noSubreaper bool
	)
	cmd := &cobra.Command{
		Use:   "run [flags] ID",
		Short: "Make a container, start it, wait for it and delete it",
		Long: `run makes a container and starts its program. In the foreground it forwards
signals, ends with the program's exit status (128 + number for a signal) and
deletes the container. With --detach it returns once the program runs.`,
		Example: `  coracle-oci run --bundle box mine
  coracle-oci run --detach --bundle box --pid-file pid mine`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			spec, bundle, err := m.load()
			if err != nil {
				return err
			}
			if detach {
				return a.runDetached(cmd.Context(), args[0], spec, bundle, &m)
			}
			return a.runForeground(cmd.Context(), args[0], spec, bundle, &m, keep, noSubreaper)
		},
	}
	m.add(cmd)
	cmd.Flags().BoolVarP(&detach, "detach", "d", false, "do not wait for the program")
	cmd.Flags().BoolVar(&keep, "keep", false, "do not delete the container when its program has ended")
	cmd.Flags().BoolVar(&noSubreaper, "no-subreaper", false, "do not reap the container's orphans")
	return cmd
}

func (a *app) runDetached(ctx context.Context, id string, spec *specs.Spec, bundle string, m *makeFlags) error {
	stdio, done, err := a.detachedStdio(spec.Process, m.consoleSocket, m.preserveFDs)
	if err != nil {
		return err
	}
	defer done()
	c, err := a.make(ctx, id, spec, bundle, m, stdio)
	if err != nil {
		return err
	}
	if err := c.Start(ctx); err != nil {
		return errors.Join(err, c.Delete(ctx, runtime.DeleteOptions{Force: true}))
	}
	return nil
}

func (a *app) runForeground(ctx context.Context, id string, spec *specs.Spec, bundle string, m *makeFlags, keep, noSubreaper bool) (err error) {
	if m.consoleSocket != "" {
		return errors.New("--console-socket is only for --detach; in the foreground the terminal is this one")
	}
	if !noSubreaper {
		if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
			return err
		}
	}
	fg, err := a.foreground(spec.Process, m.preserveFDs)
	if err != nil {
		return err
	}
	defer fg.close()
	c, err := a.make(ctx, id, spec, bundle, m, fg.stdio)
	if err != nil {
		return err
	}
	pid := c.Pid()
	defer func() {
		if !keep {
			err = errors.Join(err, c.Delete(ctx, runtime.DeleteOptions{Force: true}))
		}
	}()
	if err := fg.attach(ctx); err != nil {
		return err
	}
	if err := c.Start(ctx); err != nil {
		return err
	}
	return fg.wait(pid)
}
