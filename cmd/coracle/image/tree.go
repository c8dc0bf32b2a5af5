package image

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/coracle-project/coracle/cmd/coracle/output"
	imagesv1 "github.com/coracle-project/coracle/image/api/v1"
)

// treeImage is an image with who shares its layers.
type treeImage struct {
	Names  []string    `json:"names"`
	ID     string      `json:"id"`
	Bytes  int64       `json:"bytes"` // unpacked
	Frees  int64       `json:"frees"`
	Layers []treeLayer `json:"layers"`
}

type treeLayer struct {
	layer
	SharedWith []string `json:"sharedWith"` // other images
}

func (i *images) treeCommand() *cobra.Command {
	var format output.Format
	cmd := &cobra.Command{
		Use:   "tree [IMAGE...]",
		Short: "show images' layers, which images share them, and what removing would free",
		Long: `Show images' layers, the lowest first, with the other images that share each of them.
Removing an image frees the layers and blobs that no other image and no container needs.`,
		Example: `  coracle image tree
  coracle image tree busybox:1.36 -o json`,
		ValidArgsFunction: i.completeNames,
		RunE: func(cmd *cobra.Command, args []string) error {
			return i.call(cmd, func(ctx context.Context, c imagesv1.ImagesClient) error {
				all, err := list(ctx, c)
				if err != nil {
					return err
				}
				wanted := map[string]bool{}
				for _, a := range args {
					r, err := c.Inspect(ctx, &imagesv1.InspectRequest{Image: a})
					if err != nil {
						return err
					}
					wanted[r.GetImage().GetId()] = true
				}
				forest := grow(all)
				if len(args) > 0 {
					forest = slices.DeleteFunc(forest, func(t treeImage) bool { return !wanted[t.ID] })
				}
				return format.Print(cmd.OutOrStdout(), forest, func(w io.Writer) { treeRows(w, forest) })
			})
		},
	}
	format.Define(cmd)
	return cmd
}

func grow(all []picture) []treeImage {
	owners := map[string][]string{} // first names, by layer
	for _, p := range all {
		for _, l := range p.Layers {
			if name := p.names()[0]; !slices.Contains(owners[l.DiffID], name) {
				owners[l.DiffID] = append(owners[l.DiffID], name)
			}
		}
	}
	forest := make([]treeImage, 0, len(all))
	for _, p := range all {
		t := treeImage{Names: p.names(), ID: p.ID, Frees: p.Frees, Layers: []treeLayer{}}
		for _, l := range p.Layers {
			others := slices.DeleteFunc(slices.Clone(owners[l.DiffID]), func(n string) bool { return n == p.names()[0] })
			t.Layers = append(t.Layers, treeLayer{l, orEmpty(others)})
			t.Bytes += l.Bytes
		}
		forest = append(forest, t)
	}
	return forest
}

func treeRows(w io.Writer, forest []treeImage) {
	for _, t := range forest {
		output.Row(w, strings.Join(t.Names, ", "), output.Size(t.Bytes), "removing frees "+output.Size(t.Frees))
		for i, l := range t.Layers {
			branch := "├─ "
			if i == len(t.Layers)-1 {
				branch = "└─ "
			}
			shared := ""
			if len(l.SharedWith) > 0 {
				shared = fmt.Sprintf("shared with %s", strings.Join(l.SharedWith, ", "))
			}
			output.Row(w, branch+short(l.DiffID), output.Size(l.Bytes), shared)
		}
	}
}
