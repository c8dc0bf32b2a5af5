package workload

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/containerd/console"
	"github.com/spf13/cobra"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/coracle-project/coracle/cmd/coracle/remote"
)

// ExitCode is the error of exec when what it ran has ended with another exit code than 0. It has to
// be the process's exit code, too, and nothing is printed.
type ExitCode int

// Error implements error.
func (e ExitCode) Error() string { return fmt.Sprintf("exit code %d", int(e)) }

func (w *workload) execCommand() *cobra.Command {
	var stdin, tty bool
	cmd := &cobra.Command{
		Use:   "exec CONTAINER [--] COMMAND [ARG...]",
		Short: "run a command in a container",
		Long: `Run a command of a container in it, and exit with its exit code, or with 1 and a
message if it could not be run. The command ends when coracle exec does.

` + howToName,
		Example: `  coracle exec web -- cat /etc/hostname
  coracle exec -it web/nginx sh
  tar c dir | coracle exec -i web -- tar x -C /tmp`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(commandOf(args)) == 0 {
				return errors.New("exec: name a container and a command, as in: coracle exec web -- ls /")
			}
			return nil
		},
		ValidArgsFunction: w.complete(false, func(all inventory) []string { return all.containerNames(true) }),
		RunE: func(cmd *cobra.Command, args []string) error {
			return w.lookForContainer(cmd, args[0], func(ctx context.Context, c runtimeapi.RuntimeServiceClient, _ inventory,
				ctr *runtimeapi.Container,
			) error {
				r, err := c.Exec(ctx, &runtimeapi.ExecRequest{
					ContainerId: ctr.GetId(), Cmd: commandOf(args), Stdin: stdin, Tty: tty, Stdout: true, Stderr: !tty,
				})
				if err != nil {
					return err
				}
				s := remote.Streams{Stdout: cmd.OutOrStdout()}
				if stdin {
					s.Stdin = cmd.InOrStdin()
				}
				if !tty {
					s.Stderr = cmd.ErrOrStderr()
					return ending(remote.Run(ctx, r.GetUrl(), s))
				}
				return inTerminal(ctx, s, func(ctx context.Context, s remote.Streams) error {
					return ending(remote.Run(ctx, r.GetUrl(), s))
				})
			})
		},
	}
	// What follows the container belongs to the command, flags too.
	cmd.Flags().SetInterspersed(false)
	cmd.Flags().BoolVarP(&stdin, "stdin", "i", false, "pass our standard input on")
	cmd.Flags().BoolVarP(&tty, "tty", "t", false, "give the command a terminal, ours")
	return cmd
}

// commandOf is what follows the container, without the dashes that may come between.
func commandOf(args []string) []string {
	if len(args) < 2 {
		return nil
	}
	if args[1] == "--" {
		return args[2:]
	}
	return args[1:]
}

// ending is the error that a command's end is.
func ending(code int, err error) error {
	if err == nil && code != 0 {
		return ExitCode(code)
	}
	return err
}

// inTerminal does work with our terminal raw, so that each key goes to the command, and passes its
// size on whenever that changes.
func inTerminal(ctx context.Context, s remote.Streams, work func(context.Context, remote.Streams) error) error {
	terminal, err := console.ConsoleFromFile(os.Stdin)
	if err != nil {
		return errors.New("--tty: standard input is no terminal; leave the flag out")
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	sizes := make(chan remote.Size)
	changed := make(chan os.Signal, 1)
	signal.Notify(changed, syscall.SIGWINCH)
	defer signal.Stop(changed)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			if size, err := terminal.Size(); err == nil {
				select {
				case sizes <- remote.Size{Width: size.Width, Height: size.Height}:
				case <-ctx.Done():
					return
				}
			}
			select {
			case <-changed:
			case <-ctx.Done():
				return
			}
		}
	}()
	defer func() { cancel(); <-done }()
	if err := terminal.SetRaw(); err != nil {
		return err
	}
	s.Sizes = sizes
	return errors.Join(work(ctx, s), terminal.Reset())
}
