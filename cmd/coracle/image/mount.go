package image

import (
	"context"
	"io"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/coracle-project/coracle/cmd/coracle/output"
	imagesv1 "github.com/coracle-project/coracle/image/api/v1"
)

func (i *images) mountCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "mount IMAGE DIRECTORY",
		Short: "show an image's files in a directory, read-only",
		Long: `Mount an image's files, read-only, on a directory, which is created if it does not exist.
Set-user-id programs and devices there have no effect. The image's layers stay as long as
it is mounted; unmount it with 'coracle image unmount'.`,
		Example: `  coracle image mount registry.example/app:2 /mnt/app
  coracle image unmount /mnt/app`,
		Args: cobra.ExactArgs(2),
		ValidArgsFunction: func(cmd *cobra.Command, args []string, begin string) ([]string, cobra.ShellCompDirective) {
			if len(args) > 0 {
				return nil, cobra.ShellCompDirectiveFilterDirs
			}
			return i.completeNames(cmd, args, begin)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			dir, err := filepath.Abs(args[1])
			if err != nil {
				return err
			}
			return i.call(cmd, func(ctx context.Context, c imagesv1.ImagesClient) error {
				_, err := c.Mount(ctx, &imagesv1.MountRequest{Image: args[0], Directory: dir})
				return err
			})
		},
	}
}

func (i *images) unmountCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "unmount DIRECTORY",
		Aliases: []string{"umount"},
		Short:   "unmount an image, and remove the directory",
		Example: `  coracle image unmount /mnt/app`,
		Args:    cobra.ExactArgs(1),
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			return nil, cobra.ShellCompDirectiveFilterDirs
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			dir, err := filepath.Abs(args[0])
			if err != nil {
				return err
			}
			return i.call(cmd, func(ctx context.Context, c imagesv1.ImagesClient) error {
				_, err := c.Unmount(ctx, &imagesv1.UnmountRequest{Directory: dir})
				return err
			})
		},
	}
}

func (i *images) commitCommand() *cobra.Command {
	var format output.Format
	r := &imagesv1.CommitRequest{}
	cmd := &cobra.Command{
		Use:   "commit CONTAINER NAME",
		Short: "create an image from a container, with its changes",
		Long: `Create an image from a container's image and one more layer: the container's changes
since it was created. Volumes are not part of it. A running container is not paused: a
file that it writes at that moment may be incomplete. The image is on the container's node.`,
		Example: `  coracle image commit 1f0c7b2ad1e5 registry.example/app:fixed
  coracle image commit web/nginx registry.example/nginx:fixed
  coracle image commit --change 'CMD ["/bin/app"]' --change 'ENV MODE=debug' 1f0c7b2ad1e5 app:debug`,
		Args:              cobra.ExactArgs(2),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			id, err := i.find(cmd, i.daemon, args[0])
			if err != nil {
				return err
			}
			r.Container, r.Name = id, args[1]
			return i.call(cmd, func(ctx context.Context, c imagesv1.ImagesClient) error {
				answer, err := c.Commit(ctx, r)
				if err != nil {
					return err
				}
				all := []picture{pictureOf(answer.GetImage())}
				return format.Print(cmd.OutOrStdout(), all, func(w io.Writer) { nameRows(w, all) })
			})
		},
	}
	f := cmd.Flags()
	f.StringVar(&r.Author, "author", "", "author, for the image's configuration")
	f.StringVarP(&r.Comment, "message", "m", "", "comment, for the image's history")
	f.StringArrayVarP(&r.Changes, "change", "c", nil,
		"instruction of a Dockerfile for the configuration: CMD, ENTRYPOINT, ENV, EXPOSE,\nLABEL, STOPSIGNAL, USER, VOLUME or WORKDIR; may be "+
			"given again")
	format.Define(cmd)
	return cmd
}
