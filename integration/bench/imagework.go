package main

import (
	"context"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"strings"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/errgroup"

	"github.com/coracle-project/coracle/internal/testkit/ociimage"
)

// workload is images that are pulled and measured together.
type workload struct {
	name     string
	refs     []string
	unpacked int64 // bytes of the files, in whole blocks, layers shared counted once
}

// program is in every layer, and what containers are said to run that are never started.
const program = "nothing"

// sizes of the workloads.
const (
	oneLayerBytes  = 200 << 20
	manyLayers     = 20
	manyLayerBytes = 500 << 20 / manyLayers
	manyLayerFiles = 20_000 / manyLayers
)

// publishImages makes the workloads, the same ones each time, and pushes them.
func publishImages(ctx context.Context, tiny int) ([]workload, error) {
	one := workload{name: "1 layer, 200 MB"}
	many := workload{name: "20 layers, 500 MB, 20,000 files"}
	small := workload{name: fmt.Sprintf("%d tiny images of shared layers", tiny)}
	text := newProse(1)
	if err := one.push(ctx, "one", ociimage.Image{Layers: []ociimage.Layer{one.layer(text, "big", 64, oneLayerBytes)}}); err != nil {
		return nil, err
	}
	var image ociimage.Image
	for i := range manyLayers {
		image.Layers = append(image.Layers, many.layer(text, fmt.Sprintf("l%d", i), manyLayerFiles, manyLayerBytes))
	}
	if err := many.push(ctx, "many", image); err != nil {
		return nil, err
	}
	base := ociimage.Image{Layers: []ociimage.Layer{small.layer(text, "base", 20, 1<<20), small.layer(text, "more", 20, 1<<20)}}
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(8)
	for i := range tiny {
		name := fmt.Sprintf("tiny%d", i)
		img := base.Over(ocispec.ImageConfig{Cmd: []string{name}}, small.layer(text, name, 1, 1000))
		small.refs = append(small.refs, ref(name))
		g.Go(func() error { return pushImage(gctx, name, img) })
	}
	return []workload{one, many, small}, g.Wait()
}

func ref(name string) string { return registryAddr + "/bench/" + name + ":1" }

func (w *workload) push(ctx context.Context, name string, img ociimage.Image) error {
	w.refs = append(w.refs, ref(name))
	return pushImage(ctx, name, img)
}

func pushImage(ctx context.Context, name string, img ociimage.Image) error {
	built, err := img.Build()
	if err != nil {
		return err
	}
	return ociimage.Push(ctx, ref(name), built, ociimage.Registry{PlainHTTP: true})
}

// layer is a layer of so many files of equal size.
func (w *workload) layer(text *prose, dir string, files, bytes int) ociimage.Layer {
	const block, perDir = 4096, 50
	l := ociimage.Layer{Files: []ociimage.File{
		{Path: program, Mode: 0o755, Data: []byte("#!")}, // one of the peers wants to see it
		{Path: dir, Mode: fs.ModeDir | 0o755},
	}}
	w.unpacked += 2 * block
	for i := range files {
		sub := fmt.Sprintf("%s/%d", dir, i/perDir)
		if i%perDir == 0 {
			l.Files = append(l.Files, ociimage.File{Path: sub, Mode: fs.ModeDir | 0o755})
			w.unpacked += block
		}
		l.Files = append(l.Files, ociimage.File{Path: fmt.Sprintf("%s/%d", sub, i), Mode: 0o644, Data: text.bytes(bytes / files)})
		w.unpacked += int64((bytes/files + block - 1) / block * block)
	}
	return l
}

// prose makes bytes that gzip compresses to two thirds, somewhat less than programs.
type prose struct {
	rand  *rand.Rand
	words []string
}

func newProse(seed uint64) *prose {
	p := &prose{rand: rand.New(rand.NewPCG(seed, seed))}
	for range 4096 {
		var b strings.Builder
		for range 2 + p.rand.IntN(10) {
			b.WriteByte(byte(p.rand.IntN(256)))
		}
		p.words = append(p.words, b.String())
	}
	return p
}

func (p *prose) bytes(n int) []byte {
	b := make([]byte, 0, n+16)
	for len(b) < n {
		b = append(b, p.words[p.rand.IntN(len(p.words))]...)
	}
	return b[:n]
}
