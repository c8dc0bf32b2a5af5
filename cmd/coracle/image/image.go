// Package image has the commands below `coracle image`.
package image

import (
	"context"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"github.com/coracle-project/coracle/cmd/coracle/daemon"
	imagesv1 "github.com/coracle-project/coracle/image/api/v1"
)

// images is what the commands below `coracle image` share: where the daemon is.
type images struct {
	daemon *daemon.Daemon
	find   Find
}

// Find returns the id of a container. If it is on another node of this machine, Find executes the
// command again there.
type Find func(cmd *cobra.Command, d *daemon.Daemon, container string) (id string, err error)

// Command returns `coracle image`. program finds another program of ours.
func Command(socket func() string, program func(name string) (path string, err error), find Find) *cobra.Command {
	i := &images{daemon: daemon.New(socket), find: find}
	cmd := &cobra.Command{
		Use:   "image",
		Short: "manage images: pull, push, inspect, build, copy, remove",
		Long: `Commands for the images of a running coracled.

Name an image as registries do (registry.example/team/app:2, app@sha256:…), or
by its id or a prefix of it with at least six digits.`,
		Example: `  coracle image pull docker.io/library/busybox:1.36
  coracle image list
  coracle image tree
  coracle image save -f app.tar registry.example/app:2
  coracle image remove registry.example/app:2`,
		Args: cobra.NoArgs, // else a misspelt command would be help that was asked for
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	i.daemon.Define(cmd.PersistentFlags())
	cmd.AddCommand(
		i.listCommand(), i.inspectCommand(), i.historyCommand(), i.treeCommand(), i.usageCommand(),
		i.tagCommand(), i.removeCommand(), i.pruneCommand(), i.pullCommand(), i.pushCommand(),
		i.saveCommand(), i.loadCommand(), i.bundleCommand(), i.importCommand(), i.exportCommand(),
		i.mountCommand(), i.unmountCommand(), i.commitCommand(), buildCommand(program), i.verifyCommand(),
	)
	return cmd
}

// call does work with a client of the daemon. An interrupt ends the context of the work.
func (i *images) call(cmd *cobra.Command, work func(ctx context.Context, c imagesv1.ImagesClient) error) error {
	return i.daemon.Call(cmd.Context(), func(ctx context.Context, conn *grpc.ClientConn) error {
		return work(ctx, imagesv1.NewImagesClient(conn))
	})
}

// completeNames offers the names of the images that are there.
func (i *images) completeNames(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
	ctx, cancel := context.WithTimeout(cmd.Context(), daemon.CompletionLimit)
	defer cancel()
	cmd.SetContext(ctx)
	var names []string
	_ = i.call(cmd, func(ctx context.Context, c imagesv1.ImagesClient) error {
		r, err := c.List(ctx, &imagesv1.ListRequest{})
		for _, img := range r.GetImages() {
			names = append(names, img.GetTags()...)
		}
		return err
	})
	return names, cobra.ShellCompDirectiveNoFileComp
}

// picture is an image in the output of commands.
type picture struct {
	ID         string    `json:"id"`
	Tags       []string  `json:"tags"`
	Digests    []string  `json:"digests"`
	Manifest   string    `json:"manifest"`
	Size       int64     `json:"size"`
	Pulled     time.Time `json:"pulled"`
	Layers     []layer   `json:"layers"`
	Containers []string  `json:"containers"`
	Frees      int64     `json:"frees"`
}

// layer is one of an image's layers; bytes are those of the unpacked files.
type layer struct {
	DiffID string `json:"diffID"`
	Bytes  int64  `json:"bytes"`
	Inodes int64  `json:"inodes"`
}

func pictureOf(m *imagesv1.Image) picture {
	p := picture{
		ID: m.GetId(), Tags: orEmpty(m.GetTags()), Digests: orEmpty(m.GetDigests()), Manifest: m.GetManifest(),
		Size: m.GetSize(), Pulled: time.Unix(0, m.GetPulled()).UTC(), Layers: []layer{},
		Containers: orEmpty(m.GetContainers()), Frees: m.GetFrees(),
	}
	for _, l := range m.GetLayers() {
		p.Layers = append(p.Layers, layer{DiffID: l.GetDiffId(), Bytes: l.GetBytes(), Inodes: l.GetInodes()})
	}
	return p
}

// orEmpty keeps null out of JSON.
func orEmpty(s []string) []string {
	if s == nil {
		return []string{}
	}
	return s
}

// names is what people call the image, in order of how they like it.
func (p *picture) names() []string {
	switch {
	case len(p.Tags) > 0:
		return p.Tags
	case len(p.Digests) > 0:
		return p.Digests
	}
	return []string{p.ID}
}

// short is the beginning of a digest that people can remember for a moment.
func short(digest string) string {
	const prefix, digits = len("sha256:"), 12
	if len(digest) < prefix+digits {
		return digest
	}
	return digest[prefix : prefix+digits]
}
