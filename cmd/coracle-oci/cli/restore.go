package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/coracle-project/coracle/runtime"
)

func (a *app) restoreCommand() *cobra.Command {
	var (
		image  imageFlags
		m      makeFlags
		l      life
		opts   runtime.RestoreOptions
		detach bool
	)
	cmd := &cobra.Command{
		Use:   "restore [flags] ID",
		Short: "Create a container again from a checkpoint",
		Long: `restore creates a container whose processes continue where checkpoint saved them. The
bundle must be the saved container's. It executes criu(8).`,
		Example: "  coracle-oci restore --image-path saved --bundle box --detach mine",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if opts.ImageOptions, err = image.options(); err != nil {
				return err
			}
			spec, bundle, err := m.load()
			if err != nil {
				return err
			}
			ctx := cmd.Context()
			l.process, l.flags = spec.Process, &m
			l.make = func(stdio runtime.Stdio) (runtime.Container, error) {
				e, err := a.engine()
				if err != nil {
					return nil, err
				}
				r, ok := e.(runtime.Restorer)
				if !ok {
					return nil, fmt.Errorf("restore: %w by this engine", runtime.ErrUnsupported)
				}
				create, err := a.createOptions(bundle, &m, stdio)
				if err != nil {
					return nil, err
				}
				c, err := r.Restore(ctx, args[0], spec, create, opts)
				if err != nil {
					return nil, err
				}
				return c, a.tell(ctx, c, &m)
			}
			l.start = func(runtime.Container) error { return nil }
			if detach {
				return a.runDetached(ctx, &l)
			}
			return a.runForeground(ctx, &l)
		},
	}
	m.addRestore(cmd)
	image.add(cmd)
	f := cmd.Flags()
	f.BoolVarP(&detach, "detach", "d", false, "do not wait for the program")
	f.BoolVar(&l.noSubreaper, "no-subreaper", false, "do not reap the container's orphans")
	f.StringVar(&opts.LSMProfile, "lsm-profile", "", "TYPE:NAME of another security module's profile")
	f.StringVar(&opts.LSMMountContext, "lsm-mount-context", "", "another SELinux context of mounts")
	return cmd
}
