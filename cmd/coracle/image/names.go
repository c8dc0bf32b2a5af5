package image

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/coracle-project/coracle/cmd/coracle/output"
	imagesv1 "github.com/coracle-project/coracle/image/api/v1"
)

func (i *images) tagCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "tag IMAGE NAME...",
		Short: "give an image more names",
		Long: `Give an image more names. A name that another image has moves to this one; the
other keeps its digest.`,
		Example:           `  coracle image tag localhost/app:2 registry.example/team/app:2 registry.example/team/app:latest`,
		Args:              cobra.MinimumNArgs(2),
		ValidArgsFunction: i.completeNames,
		RunE: func(cmd *cobra.Command, args []string) error {
			return i.call(cmd, func(ctx context.Context, c imagesv1.ImagesClient) error {
				for _, name := range args[1:] {
					if _, err := c.Tag(ctx, &imagesv1.TagRequest{Image: args[0], Name: name}); err != nil {
						return err
					}
				}
				return nil
			})
		},
	}
}

// removal is the answer of remove and prune.
type removal struct {
	Untagged []string `json:"untagged"`
	Deleted  []string `json:"deleted"`
	Freed    int64    `json:"freed"`
}

func (r *removal) rows(w io.Writer) {
	for _, n := range r.Untagged {
		output.Row(w, "untagged", n)
	}
	for _, n := range r.Deleted {
		output.Row(w, "deleted", n)
	}
	output.Row(w, "freed", output.Size(r.Freed))
}

func (i *images) removeCommand() *cobra.Command {
	var format output.Format
	cmd := &cobra.Command{
		Use:     "remove IMAGE...",
		Aliases: []string{"rm"},
		Short:   "remove names, and images with their last name",
		Long: `Remove names, and images with their last name. An id removes an image with all its
names. Its containers keep running; the layers are removed with the last of them.`,
		Example: `  coracle image remove registry.example/app:1 registry.example/app:2
  coracle image remove 4bcff63911fc`,
		Args:              cobra.MinimumNArgs(1),
		ValidArgsFunction: i.completeNames,
		RunE: func(cmd *cobra.Command, args []string) error {
			return i.call(cmd, func(ctx context.Context, c imagesv1.ImagesClient) error {
				done := removal{Untagged: []string{}, Deleted: []string{}}
				for _, image := range args {
					r, err := c.Remove(ctx, &imagesv1.RemoveRequest{Image: image})
					if err != nil {
						if len(done.Untagged)+len(done.Deleted) == 0 {
							return err
						}
						return errors.Join(i.daemon.Plain(err), format.Print(cmd.OutOrStdout(), done, done.rows))
					}
					done.Untagged = append(done.Untagged, r.GetUntagged()...)
					if r.GetDeleted() != "" {
						done.Deleted = append(done.Deleted, r.GetDeleted())
					}
					done.Freed += r.GetFreed()
				}
				return format.Print(cmd.OutOrStdout(), done, done.rows)
			})
		},
	}
	format.Define(cmd)
	return cmd
}

func (i *images) pruneCommand() *cobra.Command {
	var format output.Format
	var all, yes bool
	cmd := &cobra.Command{
		Use:   "prune",
		Short: "remove images that nothing uses",
		Long: `Remove images without tags and without containers; with --all, all images without
containers. Then collect garbage: blobs and layers that nothing needs. With --all, this
includes those of damaged images, which are otherwise kept for a day.`,
		Example: `  coracle image prune
  coracle image prune --all --yes`,
		Args:              cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if all && !yes {
				return fmt.Errorf("--all removes every image without a container, for good if no registry has it; say --yes as well")
			}
			return i.call(cmd, func(ctx context.Context, c imagesv1.ImagesClient) error {
				r, err := c.Prune(ctx, &imagesv1.PruneRequest{All: all})
				if err != nil {
					return err
				}
				done := removal{Untagged: []string{}, Deleted: []string{}, Freed: r.GetFreed()}
				for _, m := range r.GetRemoved() {
					done.Untagged = append(done.Untagged, m.GetTags()...)
					done.Deleted = append(done.Deleted, m.GetId())
				}
				return format.Print(cmd.OutOrStdout(), done, done.rows)
			})
		},
	}
	cmd.Flags().BoolVarP(&all, "all", "a", false, "also images that have tags")
	cmd.Flags().BoolVarP(&yes, "yes", "y", false, "do not make sure that --all is meant")
	format.Define(cmd)
	return cmd
}
