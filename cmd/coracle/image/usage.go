package image

import (
	"context"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/coracle-project/coracle/cmd/coracle/output"
	imagesv1 "github.com/coracle-project/coracle/image/api/v1"
)

// owner is a line of `coracle image du`.
type owner struct {
	Kind   string   `json:"kind"`
	Name   string   `json:"name"`
	Owners []string `json:"owners"`
	Bytes  int64    `json:"bytes"`
	Inodes int64    `json:"inodes"`
}

func (i *images) usageCommand() *cobra.Command {
	var format output.Format
	cmd := &cobra.Command{
		Use:   "du",
		Short: "show the owner of every byte under coracled's root directory",
		Long: `Show the owner of every byte under coracled's root directory: layers and blobs with the
images that need them, containers' writable layers, and the rest by directory. A layer,
blob or download without an owner is garbage, or belongs to an operation in progress.
Mounts below the root directory are not counted.`,
		Example: `  coracle image du
  coracle image du -o json | jq 'map(.bytes) | add'`,
		Args:              cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return i.call(cmd, func(ctx context.Context, c imagesv1.ImagesClient) error {
				r, err := c.Usage(ctx, &imagesv1.UsageRequest{})
				if err != nil {
					return err
				}
				all := make([]owner, 0, len(r.GetOwners()))
				for _, o := range r.GetOwners() {
					all = append(all, owner{
						Kind: o.GetKind(), Name: o.GetName(), Owners: orEmpty(o.GetOwners()), Bytes: o.GetBytes(),
						Inodes: o.GetInodes(),
					})
				}
				return format.Print(cmd.OutOrStdout(), all, func(w io.Writer) { usageRows(w, r.GetRoot(), all) })
			})
		},
	}
	format.Define(cmd)
	return cmd
}

func usageRows(w io.Writer, root string, all []owner) {
	output.Row(w, "SIZE", "INODES", "KIND", "NAME", "OWNER")
	var bytes, inodes int64
	for _, o := range all {
		name, owners := o.Name, strings.Join(o.Owners, ", ")
		if strings.HasPrefix(name, "sha256:") {
			name = short(name)
		}
		if owners == "" {
			owners = "-"
		}
		output.Row(w, output.Size(o.Bytes), o.Inodes, o.Kind, output.OneLine(name, 40), output.OneLine(owners, 80))
		bytes, inodes = bytes+o.Bytes, inodes+o.Inodes
	}
	output.Row(w, output.Size(bytes), inodes, "total", root, "")
}
