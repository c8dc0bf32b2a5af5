package cli

import (
	"context"
	"fmt"
	"os"

	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/spf13/cobra"

	"github.com/coracle-project/coracle/runtime"
)

func (a *app) checkpointCommand() *cobra.Command {
	var (
		image imageFlags
		opts  runtime.CheckpointOptions
	)
	cmd := &cobra.Command{
		Use:   "checkpoint [flags] ID",
		Short: "Save a running container's processes to files and delete it",
		Long: `checkpoint saves all processes of a running container, with their memory and open
files, and deletes the container unless --leave-running is given. restore creates it
again. checkpoint executes criu(8), which must be in PATH and support the kernel.`,
		Example: `  coracle-oci checkpoint --image-path saved mine
  coracle-oci restore --image-path saved --bundle box --detach mine`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if opts.ImageOptions, err = image.options(); err != nil {
				return err
			}
			if err := checkParent(opts.ImageDir, opts.ParentDir); err != nil {
				return err
			}
			c, err := a.load(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			return a.checkpoint(cmd.Context(), c, opts)
		},
	}
	image.add(cmd)
	f := cmd.Flags()
	f.StringVar(&opts.ParentDir, "parent-path", "", "directory of an earlier --pre-dump, relative to --image-path")
	f.BoolVar(&opts.LeaveRunning, "leave-running", false, "keep the container running")
	f.BoolVar(&opts.PreDump, "pre-dump", false, "save only memory, and keep the container running, for a shorter checkpoint later")
	f.BoolVar(&opts.TCPSkipInFlight, "tcp-skip-in-flight", false, "leave out TCP connections that are not accepted yet")
	f.BoolVar(&opts.LinkRemap, "link-remap", false, "link deleted files that are still open")
	f.StringVar(&opts.PageServer, "page-server", "", "ADDRESS:PORT of a criu page server for the memory")
	f.IntVar(&opts.StatusFD, "status-fd", -1, "descriptor that gets a zero byte once lazy pages can be fetched")
	return cmd
}

func (a *app) checkpoint(ctx context.Context, c runtime.Container, opts runtime.CheckpointOptions) error {
	cp, ok := c.(runtime.Checkpointer)
	if !ok {
		return fmt.Errorf("checkpoint: %w by this engine", runtime.ErrUnsupported)
	}
	state, err := c.State(ctx)
	if err != nil {
		return err
	}
	switch state.Status {
	case specs.StateRunning, runtime.StatusPaused:
	default:
		return fmt.Errorf("container cannot be checkpointed in %s state: %w", state.Status, runtime.ErrNotRunning)
	}
	if err := os.MkdirAll(opts.ImageDir, 0o700); err != nil {
		return err
	}
	if err := cp.Checkpoint(ctx, opts); err != nil {
		return err
	}
	if opts.LeaveRunning || opts.PreDump {
		return nil
	}
	return a.delete(ctx, c, runtime.DeleteOptions{Force: true})
}
