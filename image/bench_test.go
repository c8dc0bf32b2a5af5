package image

import (
	"archive/tar"
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// benchLayers are four layers, 100 MB together, of files of 4 KiB to 1 MiB with
// content that compresses about as binaries do.
func benchLayers() []testLayer {
	rnd := rand.New(rand.NewPCG(1, 2))
	words := make([][]byte, 4096)
	for i := range words {
		words[i] = fmt.Appendf(nil, "%x", rnd.Uint64())[:4+rnd.IntN(8)]
	}
	var layers []testLayer
	for range 4 {
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		for n := 0; b.Len() < 25<<20; n++ {
			var body bytes.Buffer
			for size := 4096 << rnd.IntN(9); body.Len() < size; {
				body.Write(words[rnd.IntN(len(words))])
			}
			_ = w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: fmt.Sprintf("usr/lib/%d/f%d", n%40, n), Mode: 0o644, Size: int64(body.Len())})
			_, _ = w.Write(body.Bytes())
		}
		_ = w.Close()
		layers = append(layers, gzipLayer(b.Bytes()))
	}
	return layers
}

// BenchmarkPull pulls 100 MB (uncompressed) in four gzip layers over loopback, durably.
func BenchmarkPull(b *testing.B) {
	r := newFake(b)
	layers := benchLayers()
	r.image("bench:1", layers, nil)
	for _, l := range layers {
		b.SetBytes(int64(len(l.tar)) * int64(len(layers)))
	}
	for b.Loop() {
		s := openStore(b, nil)
		if _, err := s.Pull(b.Context(), r.ref("bench:1"), PullOptions{}); err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
		must(b, s.Remove(b.Context(), r.ref("bench:1")))
		b.StartTimer()
	}
}

// BenchmarkTar is the lower bound to compare with: tar(1) unpacking the same layers one
// after the other from local files, and sync of the file system.
func BenchmarkTar(b *testing.B) {
	dir := b.TempDir()
	layers := benchLayers()
	for i, l := range layers {
		must(b, os.WriteFile(filepath.Join(dir, fmt.Sprint(i, ".tgz")), l.data, 0o600))
	}
	for b.Loop() {
		for i := range layers {
			out := filepath.Join(dir, fmt.Sprint("out", i))
			must(b, os.Mkdir(out, 0o755))
			must(b, exec.Command("tar", "xzf", filepath.Join(dir, fmt.Sprint(i, ".tgz")), "-C", out).Run())
		}
		must(b, exec.Command("sync", "-f", dir).Run())
		b.StopTimer()
		for i := range layers {
			must(b, os.RemoveAll(filepath.Join(dir, fmt.Sprint("out", i))))
		}
		b.StartTimer()
	}
}
