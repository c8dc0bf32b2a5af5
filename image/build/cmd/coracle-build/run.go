package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/moby/buildkit/util/progress/progressui"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"sigs.k8s.io/yaml"

	imagesv1 "github.com/coracle-project/coracle/image/api/v1"
	"github.com/coracle-project/coracle/image/build/bases"
	"github.com/coracle-project/coracle/image/build/dockerfile"
	"github.com/coracle-project/coracle/image/build/engine"
)

// run builds.
func (s *settings) run(ctx context.Context, out, errs io.Writer) (err error) {
	args, err := s.buildArgs()
	if err != nil {
		return err
	}
	file, err := os.ReadFile(s.file)
	if err != nil {
		return err
	}
	refs, err := dockerfile.References(file, s.target, args)
	if err != nil {
		return fmt.Errorf("%s: %w", s.file, err)
	}
	conn, err := grpc.NewClient("unix:"+s.address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	images := imagesv1.NewImagesClient(conn)
	if _, err := images.List(ctx, &imagesv1.ListRequest{}); err != nil {
		return fmt.Errorf("coracled on %s: %s", s.address, status.Convert(err).Message())
	}

	e, err := s.start(ctx, errs)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.Close()) }()
	scratch, remove, err := e.Scratch()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, remove()) }()
	fresh := bases.IfMissing
	if s.pull {
		fresh = bases.Always
	}
	found, err := bases.Collect(ctx, images, refs, fresh, scratch, func(what string) { fmt.Fprintln(errs, what) })
	if err != nil {
		return err
	}
	load := &loading{ctx: ctx, images: images}
	err = e.Solve(ctx, engine.Build{
		Context: s.context, Dockerfile: s.file, Target: s.target, Args: args, Names: s.names, NoCache: s.noCache, Bases: found, Layout: scratch,
	}, load.open, errs, progressui.DisplayMode(s.progress))
	if load.err != nil {
		return load.err // what buildkitd makes of it is only a consequence
	}
	if err != nil {
		return err
	}
	return s.print(out, load.answer.GetImages())
}

// start starts buildkitd with programs that are next to this one, or else on PATH.
func (s *settings) start(ctx context.Context, errs io.Writer) (*engine.Engine, error) {
	buildkitd, err := sibling("coracle-buildkitd")
	if err != nil {
		return nil, err
	}
	oci, err := sibling("coracle-oci")
	if err != nil {
		return nil, err
	}
	return engine.Start(ctx, engine.Config{
		Root: filepath.Join(s.root, "build"), State: filepath.Join(s.state, "build"), Buildkitd: buildkitd, Runtime: oci, Keep: s.keep * 1e6,
	}, func() { fmt.Fprintln(errs, "waiting for another build to end") })
}

func sibling(name string) (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	path := filepath.Join(filepath.Dir(self), name)
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	return exec.LookPath(name)
}

// print writes the answer.
func (s *settings) print(out io.Writer, images []*imagesv1.Image) error {
	type image struct {
		ID       string   `json:"id"`
		Tags     []string `json:"tags"`
		Manifest string   `json:"manifest"`
	}
	var all []image
	for _, m := range images {
		all = append(all, image{m.GetId(), m.GetTags(), m.GetManifest()})
	}
	switch s.output {
	case "json":
		e := json.NewEncoder(out)
		e.SetIndent("", "  ")
		return e.Encode(all)
	case "yaml":
		data, err := yaml.Marshal(all)
		if err != nil {
			return err
		}
		_, err = out.Write(data)
		return err
	}
	for _, i := range all {
		for _, tag := range i.Tags {
			if _, err := fmt.Fprintf(out, "%s   %s\n", i.ID, tag); err != nil {
				return err
			}
		}
	}
	return nil
}

// loading has coracled load what is written to it.
type loading struct {
	ctx    context.Context // of the build
	images imagesv1.ImagesClient
	stream imagesv1.Images_LoadClient
	answer *imagesv1.LoadResponse
	err    error
}

func (l *loading) open() (_ io.WriteCloser, err error) {
	l.stream, err = l.images.Load(l.ctx)
	return l, err
}

// Write sends a piece, of a size that BuildKit chooses: 32 KiB or so.
func (l *loading) Write(p []byte) (int, error) {
	err := l.stream.Send(&imagesv1.LoadRequest{Data: p})
	if errors.Is(err, io.EOF) {
		return 0, l.finish() // coracled has ended the call: its answer says why
	}
	return len(p), err
}

// Close waits until the image is in the store.
func (l *loading) Close() error { return l.finish() }

func (l *loading) finish() error {
	if l.answer != nil || l.err != nil {
		return l.err
	}
	var err error
	if l.answer, err = l.stream.CloseAndRecv(); err != nil {
		l.err = errors.New(status.Convert(err).Message())
	}
	return l.err
}
