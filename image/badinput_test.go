package image

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/image/manifest"
	"github.com/coracle-project/coracle/image/registry"
	"github.com/coracle-project/coracle/image/unpack"
	"github.com/coracle-project/coracle/internal/testkit"
)

// Every refusal leaves the store as it was.
func TestPullRefuses(t *testing.T) {
	one := func() []testLayer { return []testLayer{gzipLayer(tarOf("f", "1"))} }
	evil := func(h tar.Header) []testLayer {
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		_ = w.WriteHeader(&tar.Header{Typeflag: tar.TypeSymlink, Name: "link", Linkname: "/tmp"})
		_ = w.WriteHeader(&h)
		_ = w.Close()
		return []testLayer{gzipLayer(b.Bytes())}
	}
	for name, c := range map[string]struct {
		prepare func(r *fakeRegistry) (ref string)
		want    error
		text    string
	}{
		"unknown image": {func(r *fakeRegistry) string { return "none:1" }, ErrNotFound, "404"},
		"unknown tag":   {func(r *fakeRegistry) string { r.image("app:1", one(), nil); return "app:2" }, ErrNotFound, "manifest unknown"},
		"unknown digest": {func(r *fakeRegistry) string {
			return "app@" + string(digest.FromString("x"))
		}, ErrNotFound, "404"},
		"wrong manifest digest": {func(r *fakeRegistry) string {
			d := digest.FromString("x")
			p := r.image("app:1", one(), nil)
			r.manifests["app@"+string(d)] = r.manifests["app@"+string(p.manifest)]
			return "app@" + string(d)
		}, ErrInvalidImage, "expected sha256:2d711642"},
		"wrong config digest": {func(r *fakeRegistry) string {
			p := r.image("app:1", one(), nil)
			r.blobs[p.config] = bytes.Replace(r.blobs[p.config], []byte("1000"), []byte("0000"), 1)
			return "app:1"
		}, ErrInvalidImage, "expected"},
		"wrong layer digest": {func(r *fakeRegistry) string {
			p := r.image("app:1", []testLayer{plainLayer(tarOf("f", "1"))}, nil)
			r.blobs[p.layers[0]] = tarOf("f", "2")
			return "app:1"
		}, ErrInvalidImage, "its manifest says"},
		"layer longer than said": {func(r *fakeRegistry) string {
			p := r.image("app:1", one(), nil)
			r.blobs[p.layers[0]] = append(r.blobs[p.layers[0]], 0)
			return "app:1"
		}, ErrInvalidImage, "says"},
		"layer shorter than said": {func(r *fakeRegistry) string {
			p := r.image("app:1", one(), nil)
			r.blobs[p.layers[0]] = r.blobs[p.layers[0]][:20]
			return "app:1"
		}, ErrInvalidImage, "20 bytes"},
		"wrong diff id": {func(r *fakeRegistry) string {
			r.image("app:1", one(), func(_ *ocispec.Manifest, c *ocispec.Image) { c.RootFS.DiffIDs[0] = digest.FromString("x") })
			return "app:1"
		}, ErrInvalidImage, "uncompressed content"},
		"layer missing in registry": {func(r *fakeRegistry) string {
			p := r.image("app:1", one(), nil)
			delete(r.blobs, p.layers[0])
			return "app:1"
		}, ErrNotFound, "blob unknown"},
		"fewer diff ids than layers": {func(r *fakeRegistry) string {
			r.image("app:1", one(), func(_ *ocispec.Manifest, c *ocispec.Image) { c.RootFS.DiffIDs = nil })
			return "app:1"
		}, ErrInvalidImage, "config lists 0 layers"},
		"manifest is no JSON": {func(r *fakeRegistry) string {
			r.push("app:1", ocispec.MediaTypeImageManifest, []byte("<html>"))
			return "app:1"
		}, ErrInvalidImage, "malformed manifest"},
		"config is no JSON": {func(r *fakeRegistry) string {
			d := r.blob([]byte("{"))
			r.push("app:1", ocispec.MediaTypeImageManifest, fmt.Appendf(nil,
				`{"schemaVersion":2,"config":{"mediaType":%q,"digest":%q,"size":1},"layers":[]}`, ocispec.MediaTypeImageConfig, d))
			return "app:1"
		}, ErrInvalidImage, "malformed config"},
		"manifest too large": {func(r *fakeRegistry) string {
			r.push("app:1", ocispec.MediaTypeImageManifest, make([]byte, registry.MaxManifest+1))
			return "app:1"
		}, ErrInvalidImage, "larger than"},
		"docker schema 1": {func(r *fakeRegistry) string {
			r.push("app:1", manifest.DockerSchema1Sig, []byte(`{"schemaVersion":1,"fsLayers":[]}`))
			return "app:1"
		}, ErrInvalidImage, "schema 1"},
		"artifact": {func(r *fakeRegistry) string {
			r.image("app:1", one(), func(m *ocispec.Manifest, _ *ocispec.Image) {
				m.Config.MediaType = "application/vnd.cncf.helm.config.v1+json"
			})
			return "app:1"
		}, ErrInvalidImage, "artifact"},
		"foreign layer": {func(r *fakeRegistry) string {
			r.image("app:1", one(), func(m *ocispec.Manifest, _ *ocispec.Image) {
				m.Layers[0].MediaType = manifest.DockerForeignPrefix + "diff.tar.gzip"
			})
			return "app:1"
		}, ErrInvalidImage, "foreign"},
		"unknown layer type": {func(r *fakeRegistry) string {
			r.image("app:1", one(), func(m *ocispec.Manifest, _ *ocispec.Image) { m.Layers[0].MediaType = "application/x-encrypted" })
			return "app:1"
		}, ErrInvalidImage, "unsupported layer type"},
		"digest that is a path": {func(r *fakeRegistry) string {
			r.image("app:1", one(), func(m *ocispec.Manifest, _ *ocispec.Image) { m.Layers[0].Digest = "sha256:../../../etc/passwd" })
			return "app:1"
		}, ErrInvalidImage, "digest"},
		"other platform": {func(r *fakeRegistry) string {
			r.image("app:1", one(), func(_ *ocispec.Manifest, c *ocispec.Image) { c.Architecture = "s390x" })
			return "app:1"
		}, manifest.ErrPlatform, "linux/s390x"},
		"index of other platforms": {func(r *fakeRegistry) string {
			p := r.image("app:x", one(), nil)
			r.index("app:1", ocispec.MediaTypeImageIndex, r.of("app", p.manifest, "linux", "s390x", ""),
				r.of("app", p.manifest, "windows", "amd64", ""))
			return "app:1"
		}, manifest.ErrPlatform, "linux/s390x, windows/amd64"},
		"empty index": {func(r *fakeRegistry) string {
			r.push("app:1", ocispec.MediaTypeImageIndex, []byte(`{"schemaVersion":2,"manifests":[]}`))
			return "app:1"
		}, manifest.ErrPlatform, "nothing"},
		"indexes nested too deeply": {func(r *fakeRegistry) string {
			p := r.image("app:0", one(), nil)
			d := p.manifest
			for range manifest.MaxIndexDepth + 1 {
				m := r.of("app", d, "", "", "")
				m.Platform = nil
				d = r.index("app:1", ocispec.MediaTypeImageIndex, m)
			}
			return "app:1"
		}, ErrInvalidImage, "nested"},
		"layer with dot dot":          {layerOf(evil(tar.Header{Typeflag: tar.TypeReg, Name: "../../evil"})), ErrInvalidImage, `"../../evil"`},
		"layer through absolute link": {layerOf(evil(tar.Header{Typeflag: tar.TypeReg, Name: "link/evil"})), ErrInvalidImage, `"link/evil"`},
		"layer with outside hard link": {
			layerOf(evil(tar.Header{Typeflag: tar.TypeLink, Name: "x", Linkname: "/link/passwd"})), ErrInvalidImage,
			`"x"`,
		},
		"layer that is no archive": {
			layerOf([]testLayer{plainLayer(bytes.Repeat([]byte("junk"), 300))}), ErrInvalidImage,
			"damaged archive",
		},
		"layer with damaged gzip": {layerOf([]testLayer{{
			tar: nil, data: append([]byte{0x1f, 0x8b, 8, 0}, make([]byte, 50)...),
			mediaType: ocispec.MediaTypeImageLayerGzip,
		}}), ErrInvalidImage, "damaged compressed"},
		"layer with more than allowed":  {layerOf([]testLayer{gzipLayer(tarOf("f", strings.Repeat("x", 2<<20)))}), ErrInvalidImage, "limit"},
		"reference with capitals":       {func(*fakeRegistry) string { return "App:1" }, ErrInvalidReference, "App:1"},
		"reference that is an image id": {nil, ErrInvalidReference, "image id"},
		"reference with sha512": {func(*fakeRegistry) string {
			return "app@" + string(digest.SHA512.FromString("x"))
		}, ErrInvalidReference, "sha256"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newFake(t)
			s := openStore(t, func(c *Config) { c.Layer = unpack.Limits{MaxBytes: 1 << 20, MinFree: 1} })
			ref := string(digest.FromString("x"))
			if c.prepare != nil {
				ref = r.ref(c.prepare(r))
			}
			_, err := s.Pull(t.Context(), ref, PullOptions{})
			if !errors.Is(err, c.want) || !strings.Contains(fmt.Sprint(err), c.text) {
				t.Errorf("error %v\nwant %v with %q", err, c.want, c.text)
			}
			if got := s.left(t); got != nothingLeft {
				t.Error(got)
			}
		})
	}
}

func layerOf(layers []testLayer) func(*fakeRegistry) string {
	return func(r *fakeRegistry) string { r.image("app:1", layers, nil); return "app:1" }
}

func TestUnreachableRegistry(t *testing.T) {
	addr, s := testkit.RefusingAddr(t), openStore(t, nil)
	_, err := s.Pull(t.Context(), addr+"/app:1", PullOptions{})
	if !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), "connection refused") || !strings.Contains(err.Error(), addr) {
		t.Errorf("error %v", err)
	}
}

func TestNoSpace(t *testing.T) {
	r := newFake(t)
	r.image("app:1", threeLayers(), nil)
	s := openStore(t, func(c *Config) { c.Layer.MinFree = 1 << 60 })
	_, err := s.Pull(t.Context(), r.ref("app:1"), PullOptions{})
	if !errors.Is(err, unix.ENOSPC) || s.left(t) != nothingLeft {
		t.Errorf("error %v, left %s", err, s.left(t))
	}
}

func TestOpenRefuses(t *testing.T) {
	layers := newDirLayers(t, t.TempDir())
	notPEM := t.TempDir() + "/ca.pem"
	must(t, os.WriteFile(notPEM, []byte("x"), 0o600))
	for name, cfg := range map[string]Config{
		"relative root": {Root: "images", Layers: layers},
		"no layers":     {Root: t.TempDir()},
		"bad mirror": {
			Root: t.TempDir(), Layers: layers,
			Registries: registry.Config{Settings: map[string]Registry{"a": {Mirrors: []string{"ftp://x"}}}},
		},
		"mirror path": {
			Root: t.TempDir(), Layers: layers,
			Registries: registry.Config{Settings: map[string]Registry{"a": {Mirrors: []string{"https://x/y"}}}},
		},
		"missing CA":   {Root: t.TempDir(), Layers: layers, Registries: registry.Config{Settings: map[string]Registry{"a": {CAFile: "/none"}}}},
		"CA is no PEM": {Root: t.TempDir(), Layers: layers, Registries: registry.Config{Settings: map[string]Registry{"a": {CAFile: notPEM}}}},
	} {
		if s, err := Open(cfg); err == nil {
			s.Close()
			t.Errorf("%s: Open succeeded", name)
		}
	}
}
