package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/runtime"
	"github.com/coracle-project/coracle/runtime/engine"
)

func (a *app) startCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "start ID",
		Short:   "Start a created container's program",
		Example: "  coracle-oci start mine",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.load(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			return a.start(cmd.Context(), c)
		},
	}
}

// start says in runc's words why a container cannot be started.
func (a *app) start(ctx context.Context, c runtime.Container) error {
	n, err := a.newNotifier(c.ID(), nil)
	if err != nil {
		return err
	}
	if err := n.listen(); err != nil {
		return err
	}
	pid := c.Pid()
	switch err := c.Start(ctx); {
	case errors.Is(err, runtime.ErrRunning):
		return fmt.Errorf("cannot start an already running container: %w", err)
	case errors.Is(err, runtime.ErrNotRunning):
		return fmt.Errorf("cannot start a container that has stopped: %w", err)
	case err != nil:
		return err
	}
	return n.forwardReady(ctx, pid, pid)
}

func (a *app) killCommand() *cobra.Command {
	var all bool
	cmd := &cobra.Command{
		Use:   "kill [flags] ID [SIGNAL]",
		Short: "Send a signal to a container's first process (default TERM)",
		Example: `  coracle-oci kill mine KILL
  coracle-oci kill --all mine 15`,
		Args: cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.load(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			sig := unix.SIGTERM
			if len(args) == 2 {
				if sig, err = parseSignal(args[1]); err != nil {
					return err
				}
			}
			if all {
				// All of none is no failure, as with runc: containerd asks
				// for it after the first process has ended.
				if err = c.SignalAll(cmd.Context(), sig); errors.Is(err, runtime.ErrNotRunning) {
					err = nil
				}
			} else {
				err = sendSignal(cmd.Context(), c, sig)
			}
			if errors.Is(err, runtime.ErrNotRunning) {
				// The text that runc's callers look for.
				err = fmt.Errorf("container not running: %w", err)
			}
			return err
		},
	}
	cmd.Flags().BoolVarP(&all, "all", "a", false, "send it to all processes in the container")
	return cmd
}

// sendSignal sends sig to init. With init the kernel kills all processes of its pid namespace;
// where that is not the container's own, SIGKILL is sent to each, as runc does.
func sendSignal(ctx context.Context, c runtime.Container, sig unix.Signal) error {
	if sig == unix.SIGKILL && !hasPidNamespace(ctx, c) {
		return c.SignalAll(ctx, sig)
	}
	return c.Signal(ctx, sig)
}

// hasPidNamespace is true if the bundle, which tells, is gone.
func hasPidNamespace(ctx context.Context, c runtime.Observable) bool {
	state, err := c.State(ctx)
	if err != nil {
		return true
	}
	spec, err := runtime.LoadSpec(state.Bundle)
	if err != nil || spec.Linux == nil {
		return true
	}
	return slices.ContainsFunc(spec.Linux.Namespaces, func(n specs.LinuxNamespace) bool {
		return n.Type == specs.PIDNamespace && n.Path == ""
	})
}

// parseSignal takes 9, KILL or SIGKILL, in any case.
func parseSignal(s string) (unix.Signal, error) {
	if n, err := strconv.Atoi(s); err == nil {
		if n < 0 || n > 64 {
			return 0, fmt.Errorf("signal %d is out of range, use 1 to 64", n)
		}
		return unix.Signal(n), nil
	}
	name := "SIG" + strings.TrimPrefix(strings.ToUpper(s), "SIG")
	if sig := unix.SignalNum(name); sig != 0 {
		return sig, nil
	}
	return 0, fmt.Errorf("signal %q is unknown, use a name such as TERM or a number", s)
}

func (a *app) deleteCommand() *cobra.Command {
	var force bool
	cmd := &cobra.Command{
		Use:     "delete [flags] ID...",
		Short:   "Delete containers and everything they hold",
		Example: "  coracle-oci delete --force mine",
		Args:    cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			var errs []error
			var found []runtime.Container
			for _, id := range args {
				c, err := a.load(cmd.Context(), id)
				switch {
				case err == nil:
					found = append(found, c)
				case errors.Is(err, engine.ErrLibcontainer):
					return err // before any is deleted
				case !force || !errors.Is(err, runtime.ErrNotFound):
					errs = append(errs, err)
				}
			}
			for _, c := range found {
				errs = append(errs, a.delete(cmd.Context(), c, runtime.DeleteOptions{Force: force}))
			}
			return errors.Join(errs...)
		},
	}
	cmd.Flags().BoolVarP(&force, "force", "f", false, "kill it if it runs; be content if it does not exist")
	return cmd
}

// delete frees what the engine holds and what this program has added.
func (a *app) delete(ctx context.Context, c runtime.Container, opts runtime.DeleteOptions) error {
	err := c.Delete(ctx, opts)
	if errors.Is(err, runtime.ErrRunning) {
		return fmt.Errorf("cannot delete container %s that is not stopped: %w; kill it first or use --force", c.ID(), err)
	}
	if err != nil {
		return err
	}
	return os.RemoveAll(a.notifyDir(c.ID()))
}

func (a *app) pauseCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "pause ID",
		Short:   "Freeze all processes of a container",
		Example: "  coracle-oci pause mine",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.load(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			if err := wantStatus(cmd.Context(), c, "container not running", specs.StateRunning); err != nil {
				return err
			}
			return c.Pause(cmd.Context())
		},
	}
}

func (a *app) resumeCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "resume ID",
		Short:   "Resume a paused container",
		Example: "  coracle-oci resume mine",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.load(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			if err := wantStatus(cmd.Context(), c, "container not paused", runtime.StatusPaused); err != nil {
				return err
			}
			return c.Resume(cmd.Context())
		},
	}
}

// wantStatus refuses a container in another status, in the words that runc's callers look for.
func wantStatus(ctx context.Context, c runtime.Observable, otherwise string, want specs.ContainerState) error {
	s, err := c.State(ctx)
	if err == nil && s.Status != want {
		err = fmt.Errorf("%s: container %s is %s", otherwise, c.ID(), s.Status)
	}
	return err
}
