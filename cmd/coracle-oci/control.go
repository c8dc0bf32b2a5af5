package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/runtime"
)

func (a *app) startCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "start ID",
		Short:   "Let a created container's program run",
		Example: "  coracle-oci start mine",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.load(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			return c.Start(cmd.Context())
		},
	}
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
				err = c.Signal(cmd.Context(), sig)
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
		Short:   "Free everything that containers hold",
		Example: "  coracle-oci delete --force mine",
		Args:    cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			var errs []error
			for _, id := range args {
				c, err := a.load(cmd.Context(), id)
				if force && errors.Is(err, runtime.ErrNotFound) {
					continue
				}
				if err == nil {
					err = c.Delete(cmd.Context(), runtime.DeleteOptions{Force: force})
				}
				if errors.Is(err, runtime.ErrRunning) {
					err = fmt.Errorf("%w; kill it first or use --force", err)
				}
				errs = append(errs, err)
			}
			return errors.Join(errs...)
		},
	}
	cmd.Flags().BoolVarP(&force, "force", "f", false, "kill it if it runs; be content if it does not exist")
	return cmd
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
			return c.Pause(cmd.Context())
		},
	}
}

func (a *app) resumeCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "resume ID",
		Short:   "Let a paused container go on",
		Example: "  coracle-oci resume mine",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.load(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			return c.Resume(cmd.Context())
		},
	}
}

func (a *app) updateCommand() *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use:   "update --resources FILE ID",
		Short: "Change a running container's resource limits",
		Example: `  echo '{"memory": {"limit": 268435456}}' |
    coracle-oci update --resources - mine`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.load(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			var in io.Reader = a.stdin
			if file != "-" {
				f, err := os.Open(file)
				if err != nil {
					return err
				}
				defer f.Close()
				in = f
			}
			var r specs.LinuxResources
			if err := json.NewDecoder(io.LimitReader(in, runtime.MaxSpecSize)).Decode(&r); err != nil {
				return fmt.Errorf("read --resources %s: %w", file, err)
			}
			return c.Update(cmd.Context(), &r)
		},
	}
	cmd.Flags().StringVarP(&file, "resources", "r", "-", "JSON file with the runtime spec's linux.resources, - for standard input")
	return cmd
}
