package engine

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/plugins/content/local"
	"github.com/distribution/reference"
	"github.com/moby/buildkit/client"
	"github.com/moby/buildkit/util/progress/progressui"
	"github.com/opencontainers/go-digest"
	"github.com/tonistiigi/fsutil"
	"golang.org/x/sync/errgroup"
)

// Build is what is to be built.
type Build struct {
	Context    string // directory
	Dockerfile string // path
	Target     string // stage; "" for the last
	Args       map[string]string
	Names      []string // of the image
	NoCache    bool
	// Bases are digests of the manifests in the layout, by the names in the Dockerfile;
	// Layout is the directory with their blobs.
	Bases  map[string]digest.Digest
	Layout string
}

// storeID names the layout of the bases within one build.
const storeID = "coracle-bases"

// Solve builds, and has the image, as an OCI archive, written to what open returns.
// Progress is shown on out.
func (e *Engine) Solve(ctx context.Context, b Build, open func() (io.WriteCloser, error), out io.Writer,
	mode progressui.DisplayMode,
) error {
	opt, err := b.options(open)
	if err != nil {
		return err
	}
	c, err := client.New(ctx, "unix://"+e.socket)
	if err != nil {
		return err
	}
	defer c.Close()
	display, err := progressui.NewDisplay(out, mode)
	if err != nil {
		return err
	}
	status := make(chan *client.SolveStatus)
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		_, err := c.Solve(gctx, nil, opt, status)
		return err
	})
	g.Go(func() error {
		// It ends with the channel, and has to see the end also of a build that is cancelled.
		_, err := display.UpdateFrom(context.WithoutCancel(ctx), status)
		return err
	})
	if err := g.Wait(); err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return err
	}
	return nil
}

func (b *Build) options(open func() (io.WriteCloser, error)) (client.SolveOpt, error) {
	var opt client.SolveOpt
	dir, err := fsutil.NewFS(b.Context)
	if err != nil {
		return opt, fmt.Errorf("context %s: %w", b.Context, err)
	}
	fileDir, err := fsutil.NewFS(filepath.Dir(b.Dockerfile))
	if err != nil {
		return opt, err
	}
	opt = client.SolveOpt{
		Frontend:    "dockerfile.v0",
		LocalMounts: map[string]fsutil.FS{"context": dir, "dockerfile": fileDir},
		FrontendAttrs: map[string]string{
			"filename": filepath.Base(b.Dockerfile),
			// The frontend that is built in, also if the file names one in a registry.
			"cmdline": "dockerfile.v0",
		},
		Exports: []client.ExportEntry{{
			Type:   client.ExporterOCI,
			Attrs:  map[string]string{"name": strings.Join(b.Names, ","), "oci-mediatypes": "true"},
			Output: func(map[string]string) (io.WriteCloser, error) { return open() },
		}},
	}
	set := opt.FrontendAttrs
	if b.Target != "" {
		set["target"] = b.Target
	}
	if b.NoCache {
		set["no-cache"] = ""
	}
	for k, v := range b.Args {
		set["build-arg:"+k] = v
	}
	for ref, d := range b.Bases {
		key, err := contextKey(ref)
		if err != nil {
			return opt, err
		}
		set[key] = "oci-layout://" + storeID + "@" + d.String()
	}
	if len(b.Bases) > 0 {
		store, err := local.NewStore(b.Layout)
		if err != nil {
			return opt, err
		}
		opt.OCIStores = map[string]content.Store{storeID: store}
	}
	return opt, nil
}

// contextKey is the key by which the Dockerfile frontend looks for an image's replacement.
func contextKey(ref string) (string, error) {
	named, err := reference.ParseNormalizedNamed(ref)
	if err != nil {
		return "", fmt.Errorf("image %q: %w", ref, err)
	}
	return "context:" + strings.TrimSuffix(reference.FamiliarString(reference.TagNameOnly(named)), ":latest"), nil
}

// Scratch makes a directory for the time of this build, and clears away what builds that
// were killed have left.
func (e *Engine) Scratch() (dir string, remove func() error, err error) {
	dir = filepath.Join(e.root, "scratch")
	if err := os.RemoveAll(dir); err != nil {
		return "", nil, err
	}
	return dir, func() error { return os.RemoveAll(dir) }, os.Mkdir(dir, 0o700)
}
