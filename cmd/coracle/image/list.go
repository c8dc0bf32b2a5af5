package image

import (
	"context"
	"encoding/json"
	"io"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/spf13/cobra"

	"github.com/coracle-project/coracle/cmd/coracle/output"
	imagesv1 "github.com/coracle-project/coracle/image/api/v1"
)

func (i *images) listCommand() *cobra.Command {
	var format output.Format
	cmd := &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "list the images, one line for each name",
		Long: `List the images, one line for each name. SIZE is what a registry transfers,
UNPACKED what the layers take on disk, shared ones counted for each image.`,
		Example: `  coracle image list
  coracle image list -o json | jq -r '.[].tags[]'`,
		Args:              cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return i.call(cmd, func(ctx context.Context, c imagesv1.ImagesClient) error {
				all, err := list(ctx, c)
				if err != nil {
					return err
				}
				return format.Print(cmd.OutOrStdout(), all, func(w io.Writer) { listRows(w, all) })
			})
		},
	}
	format.Define(cmd)
	return cmd
}

// list asks for all images.
func list(ctx context.Context, c imagesv1.ImagesClient) ([]picture, error) {
	r, err := c.List(ctx, &imagesv1.ListRequest{})
	all := make([]picture, 0, len(r.GetImages()))
	for _, m := range r.GetImages() {
		all = append(all, pictureOf(m))
	}
	return all, err
}

func listRows(w io.Writer, all []picture) {
	output.Row(w, "NAME", "ID", "SIZE", "UNPACKED", "PULLED", "CONTAINERS")
	for _, p := range all {
		var unpacked int64
		for _, l := range p.Layers {
			unpacked += l.Bytes
		}
		for _, name := range p.names() {
			output.Row(w, name, short(p.ID), output.Size(p.Size), output.Size(unpacked), output.Ago(p.Pulled), len(p.Containers))
		}
	}
}

func (i *images) inspectCommand() *cobra.Command {
	var format output.Format
	cmd := &cobra.Command{
		Use:   "inspect IMAGE",
		Short: "print an image's layers, manifest and configuration",
		Example: `  coracle image inspect busybox:1.36
  coracle image inspect -o json busybox:1.36 | jq .configuration.config.Env`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: i.completeNames,
		RunE: func(cmd *cobra.Command, args []string) error {
			return i.call(cmd, func(ctx context.Context, c imagesv1.ImagesClient) error {
				r, err := c.Inspect(ctx, &imagesv1.InspectRequest{Image: args[0]})
				if err != nil {
					return err
				}
				return format.Print(cmd.OutOrStdout(), struct {
					picture
					Manifest      json.RawMessage `json:"manifestDocument"`
					Configuration json.RawMessage `json:"configuration"`
				}{pictureOf(r.GetImage()), r.GetManifest(), r.GetConfiguration()}, nil)
			})
		},
	}
	format.DefineDocument(cmd)
	return cmd
}

// step is one instruction that an image was made by.
type step struct {
	Created   *time.Time `json:"created"`
	CreatedBy string     `json:"createdBy"`
	Comment   string     `json:"comment,omitempty"`
	Layer     string     `json:"layer,omitempty"` // diff id; none: the step changed no file
	Bytes     int64      `json:"bytes"`           // unpacked
}

func (i *images) historyCommand() *cobra.Command {
	var format output.Format
	cmd := &cobra.Command{
		Use:   "history IMAGE",
		Short: "show the steps that built an image, the newest first",
		Example: `  coracle image history busybox:1.36
  coracle image history -o json registry.example/app:2`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: i.completeNames,
		RunE: func(cmd *cobra.Command, args []string) error {
			return i.call(cmd, func(ctx context.Context, c imagesv1.ImagesClient) error {
				r, err := c.Inspect(ctx, &imagesv1.InspectRequest{Image: args[0]})
				if err != nil {
					return err
				}
				steps, err := history(r)
				if err != nil {
					return err
				}
				return format.Print(cmd.OutOrStdout(), steps, func(w io.Writer) { historyRows(w, steps) })
			})
		},
	}
	format.Define(cmd)
	return cmd
}

// history puts steps and layers together. An image's author may have written any number
// of steps; layers that no step claims are listed by themselves.
func history(r *imagesv1.InspectResponse) ([]step, error) {
	var config ocispec.Image
	if err := json.Unmarshal(r.GetConfiguration(), &config); err != nil {
		return nil, err
	}
	layers := pictureOf(r.GetImage()).Layers
	steps := []step{}
	add := func(s step, layered bool) {
		if layered && len(layers) > 0 {
			s.Layer, s.Bytes = layers[0].DiffID, layers[0].Bytes
			layers = layers[1:]
		}
		steps = append([]step{s}, steps...)
	}
	for _, h := range config.History {
		add(step{Created: h.Created, CreatedBy: h.CreatedBy, Comment: h.Comment}, !h.EmptyLayer)
	}
	for len(layers) > 0 {
		add(step{}, true)
	}
	return steps, nil
}

func historyRows(w io.Writer, steps []step) {
	output.Row(w, "LAYER", "CREATED", "SIZE", "CREATED BY", "COMMENT")
	for _, s := range steps {
		created, layer := "-", "-"
		if s.Created != nil {
			created = output.Ago(*s.Created)
		}
		if s.Layer != "" {
			layer = short(s.Layer)
		}
		output.Row(w, layer, created, output.Size(s.Bytes), output.OneLine(s.CreatedBy, 60), output.OneLine(s.Comment, 30))
	}
}
