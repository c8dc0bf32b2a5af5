package image

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/spf13/cobra"

	"github.com/coracle-project/coracle/cmd/coracle/bar"
	"github.com/coracle-project/coracle/cmd/coracle/output"
	imagesv1 "github.com/coracle-project/coracle/image/api/v1"
)

// pieceSize is how many bytes of an archive one message to the daemon has.
const pieceSize = 256 << 10

func (i *images) saveCommand() *cobra.Command {
	var file, format string
	cmd := &cobra.Command{
		Use:   "save IMAGE...",
		Short: "write images to an archive",
		Long: `Write images, with the given names, to an archive that other tools can read.

  oci         an OCI image layout in a tar archive (skopeo: oci-archive)
  docker      what docker load and podman load read in any version (docker-archive)
  oci-dir     an OCI image layout as a directory, which --file names

A saved OCI image has the registry's manifest and digest if the layers' blobs were kept.
Otherwise save writes a new manifest and says so. The id does not change.`,
		Example: `  coracle image save -f app.tar registry.example/app:2 docker.io/library/redis:8
  coracle image save --format docker app:2 | ssh host podman load
  coracle image save --format oci-dir -f ./layout app:2`,
		Args:              cobra.MinimumNArgs(1),
		ValidArgsFunction: i.completeNames,
		RunE: func(cmd *cobra.Command, args []string) error {
			request := &imagesv1.SaveRequest{Images: args}
			switch format {
			case "oci", "oci-dir":
			case "docker":
				request.Format = imagesv1.Format_FORMAT_DOCKER
			default:
				return fmt.Errorf("--format %s: it is oci, docker or oci-dir", format)
			}
			if format == "oci-dir" {
				if file == "" {
					return errors.New("--format oci-dir: say with --file which directory to make")
				}
				if err := checkNewDir(file); err != nil {
					return err
				}
			}
			return i.call(cmd, func(ctx context.Context, c imagesv1.ImagesClient) error {
				s, err := c.Save(ctx, request)
				if err != nil {
					return err
				}
				p := bar.New(cmd.ErrOrStderr(), "save")
				if format == "oci-dir" {
					return receive(s, p, func(r io.Reader) error { return extractLayout(r, file) })
				}
				return i.toFile(cmd, file, func(w io.Writer) error {
					return receive(s, p, func(r io.Reader) error { _, err := io.Copy(w, r); return err })
				})
			})
		},
	}
	cmd.Flags().StringVarP(&file, "file", "f", "", "where to write to, instead of standard output")
	cmd.Flags().StringVar(&format, "format", "oci", "oci, docker or oci-dir")
	_ = cmd.RegisterFlagCompletionFunc("format",
		cobra.FixedCompletions([]string{"oci", "docker", "oci-dir"}, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

func (i *images) loadCommand() *cobra.Command {
	var file, name string
	var format output.Format
	cmd := &cobra.Command{
		Use:   "load",
		Short: "read images from an archive",
		Long: `Read images from an archive (docker-archive or OCI image layout, also compressed with
gzip or zstd), or from a directory with an OCI image layout. load detects the format.
It checks everything against its digest before it stores an image. Of images for several
platforms, it takes this machine's.`,
		Example: `  coracle image load -f app.tar
  podman save app:2 | coracle image load
  coracle image load -f ./layout --name registry.example/app:2`,
		Args:              cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return fromFile(cmd, file, func(r io.Reader, size int64) error {
				return i.call(cmd, func(ctx context.Context, c imagesv1.ImagesClient) error {
					s, err := c.Load(ctx)
					if err != nil {
						return err
					}
					p := bar.New(cmd.ErrOrStderr(), "load")
					p.Total(size)
					send := func(first bool, data []byte) error {
						m := &imagesv1.LoadRequest{Data: data}
						if first {
							m.Name = name
						}
						return s.Send(m)
					}
					if err := transmit(r, p, send); err != nil {
						return err
					}
					answer, err := s.CloseAndRecv()
					for _, n := range answer.GetNotes() {
						p.Note(n)
					}
					return loaded(cmd, format, p, answer.GetImages(), err)
				})
			})
		},
	}
	cmd.Flags().StringVarP(&file, "file", "f", "", "archive or directory to read, instead of standard input")
	cmd.Flags().StringVar(&name, "name", "", "name of an image that the archive gives none")
	format.Define(cmd)
	return cmd
}

func (i *images) importCommand() *cobra.Command {
	var file, config string
	var format output.Format
	cmd := &cobra.Command{
		Use:   "import NAME",
		Short: "create an image from a root file system's tar archive",
		Long: `Create an image of one layer: the tar archive of a root file system, also compressed
with gzip or zstd. A JSON file in the format of the OCI image specification can set the
configuration, such as the command.`,
		Example: `  debootstrap stable root && tar -C root -c . | coracle image import debian:mine
  coracle image import -f root.tar.gz --config config.json app:1`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			conf, err := readConfiguration(config)
			if err != nil {
				return err
			}
			return fromFile(cmd, file, func(r io.Reader, size int64) error {
				return i.call(cmd, func(ctx context.Context, c imagesv1.ImagesClient) error {
					s, err := c.Import(ctx)
					if err != nil {
						return err
					}
					p := bar.New(cmd.ErrOrStderr(), "import "+args[0])
					p.Total(size)
					send := func(first bool, data []byte) error {
						m := &imagesv1.ImportRequest{Data: data}
						if first {
							m.Name, m.Configuration = args[0], conf
						}
						return s.Send(m)
					}
					if err := transmit(r, p, send); err != nil {
						return err
					}
					answer, err := s.CloseAndRecv()
					return loaded(cmd, format, p, []*imagesv1.Image{answer.GetImage()}, err)
				})
			})
		},
	}
	cmd.Flags().StringVarP(&file, "file", "f", "", "archive to read, instead of standard input")
	cmd.Flags().StringVar(&config, "config", "", "JSON file with the image's configuration")
	format.Define(cmd)
	return cmd
}

// readConfiguration reads and checks an OCI image configuration; none is fine.
func readConfiguration(file string) ([]byte, error) {
	if file == "" {
		return nil, nil
	}
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var config ocispec.Image
	if err := json.Unmarshal(data, &config); err != nil {
		return nil, fmt.Errorf("--config %s: %w", file, err)
	}
	return data, nil
}

// loaded ends load and import.
func loaded(cmd *cobra.Command, format output.Format, p *bar.Progress, images []*imagesv1.Image, err error) error {
	if err != nil {
		p.Abort()
		return err
	}
	p.End()
	all := make([]picture, 0, len(images))
	for _, m := range images {
		all = append(all, pictureOf(m))
	}
	return format.Print(cmd.OutOrStdout(), all, func(w io.Writer) { nameRows(w, all) })
}

func (i *images) exportCommand() *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use:   "export IMAGE",
		Short: "write an image's files, its layers merged, as a tar archive",
		Long: `Write an image's root file system, its layers merged, as a tar archive with owners,
modes and extended attributes. Nothing else of the image is in it; see save.`,
		Example: `  coracle image export busybox:1.36 | tar -t
  coracle image export -f root.tar registry.example/app:2`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: i.completeNames,
		RunE: func(cmd *cobra.Command, args []string) error {
			return i.call(cmd, func(ctx context.Context, c imagesv1.ImagesClient) error {
				s, err := c.Export(ctx, &imagesv1.ExportRequest{Image: args[0]})
				if err != nil {
					return err
				}
				return i.toFile(cmd, file, func(w io.Writer) error {
					return receive(s, bar.New(cmd.ErrOrStderr(), "export "+args[0]), func(r io.Reader) error {
						_, err := io.Copy(w, r)
						return err
					})
				})
			})
		},
	}
	cmd.Flags().StringVarP(&file, "file", "f", "", "where to write to, instead of standard output")
	return cmd
}
