package image

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"

	"github.com/coracle-project/coracle/cmd/coracle/bar"
	imagesv1 "github.com/coracle-project/coracle/image/api/v1"
)

func (i *images) bundleCommand() *cobra.Command {
	var file string
	var manifests []string
	cmd := &cobra.Command{
		Use:   "bundle -f FILE [IMAGE...]",
		Short: "pull images and write them to one archive, for machines without a registry",
		Long: `Write images to one archive, an OCI image layout: those that are named, and those of the pods in manifests. Images that
this machine does not have are pulled. Coracle itself needs no images.

On another machine, an archive in /var/lib/coracle/preload is loaded by "coracle up" before pods start, and any archive by
"coracle image load".`,
		Example: `  coracle image bundle -f app.tar registry.example/app:2 docker.io/library/redis:8
  coracle image bundle -f all.tar --manifests /etc/coracle/manifests`,
		ValidArgsFunction: i.completeNames,
		RunE: func(cmd *cobra.Command, args []string) error {
			names := slices.Clone(args)
			for _, path := range manifests {
				found, err := imagesOf(path)
				if err != nil {
					return fmt.Errorf("--manifests: %w", err)
				}
				names = append(names, found...)
			}
			slices.Sort(names)
			names = slices.Compact(names)
			switch {
			case file == "":
				return errors.New("name the archive to write with --file")
			case len(names) == 0:
				return errors.New("no image: name some, or manifests with pods; Coracle itself needs none")
			}
			return i.call(cmd, func(ctx context.Context, c imagesv1.ImagesClient) error {
				for _, name := range names {
					if err := pullMissing(ctx, c, name, cmd.ErrOrStderr()); err != nil {
						return err
					}
				}
				s, err := c.Save(ctx, &imagesv1.SaveRequest{Images: names})
				if err != nil {
					return err
				}
				return i.toFile(cmd, file, func(w io.Writer) error {
					return receive(s, bar.New(cmd.ErrOrStderr(), "bundle"), func(r io.Reader) error { _, err := io.Copy(w, r); return err })
				})
			})
		},
	}
	cmd.Flags().StringVarP(&file, "file", "f", "", "archive to write")
	cmd.Flags().StringSliceVar(&manifests, "manifests", nil, "files with manifests, or directories of them, whose pods' images are wanted, too")
	return cmd
}

// pullMissing pulls an image unless the daemon has it.
func pullMissing(ctx context.Context, c imagesv1.ImagesClient, name string, out io.Writer) error {
	if _, err := c.Inspect(ctx, &imagesv1.InspectRequest{Image: name}); err == nil {
		return nil
	}
	s, err := c.Pull(ctx, &imagesv1.PullRequest{Image: name})
	if err == nil {
		_, err = follow(s, bar.New(out, "pull "+name))
	}
	return err
}

// longestManifest is the largest file in bytes that is read as a manifest.
const longestManifest = 8 << 20

// imagesOf returns the images of the pods in a manifest, or in those of a directory.
func imagesOf(path string) ([]string, error) {
	st, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !st.IsDir() {
		return imagesOfFile(path)
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		return nil, err
	}
	var all []string
	for _, e := range entries {
		if !slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(e.Name())) || e.Name()[0] == '.' {
			continue
		}
		found, err := imagesOfFile(filepath.Join(path, e.Name()))
		if err != nil {
			return nil, err
		}
		all = append(all, found...)
	}
	return all, nil
}

func imagesOfFile(path string) (all []string, err error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	data, err := io.ReadAll(io.LimitReader(f, longestManifest+1))
	if err != nil {
		return nil, err
	}
	if len(data) > longestManifest {
		return nil, fmt.Errorf("%s is larger than %d bytes", path, longestManifest)
	}
	for documents := yaml.NewDecoder(bytes.NewReader(data)); ; {
		var content any
		err := documents.Decode(&content)
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		all = append(all, findImages(content)...)
	}
}

// findImages looks for containers and volumes of images anywhere in an object: a pod's
// specification may be in a template, of a kind that is not known here.
func findImages(content any) (all []string) {
	switch c := content.(type) {
	case []any:
		for _, item := range c {
			all = append(all, findImages(item)...)
		}
	case map[string]any:
		for key, value := range c {
			switch key {
			case "containers", "initContainers":
				all = append(all, fieldOf(value, "image")...)
			case "volumes":
				if items, ok := value.([]any); ok {
					for _, item := range items {
						volume, _ := item.(map[string]any)
						all = append(all, fieldOf([]any{volume["image"]}, "reference")...)
					}
				}
			default:
				all = append(all, findImages(value)...)
			}
		}
	}
	return all
}

// fieldOf returns the texts of a field in the items of a list.
func fieldOf(list any, field string) (all []string) {
	items, _ := list.([]any)
	for _, item := range items {
		object, _ := item.(map[string]any)
		if text, ok := object[field].(string); ok && text != "" {
			all = append(all, text)
		}
	}
	return all
}
