package integration

import (
	"context"
	"encoding/json"
	"io/fs"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/coracle-project/coracle/internal/testkit"
	"github.com/coracle-project/coracle/internal/testkit/ociimage"
)

// hostile is a registry with one image that does whatever a test wants: real
// registries refuse to store such things.
type hostile struct {
	addr string
	// manifest answers for any tag; byDigest for anything asked by digest.
	manifest  []byte
	mediaType string
	blobs     map[digest.Digest][]byte
	// cut closes the connection after half of each blob.
	cut bool
}

func newHostile(t *testing.T, b ociimage.Built) *hostile {
	h := &hostile{manifest: b.Blobs[b.Manifest.Digest], mediaType: b.Manifest.MediaType, blobs: b.Blobs}
	srv := httptest.NewServer(h)
	t.Cleanup(srv.Close)
	h.addr = srv.Listener.Addr().String()
	return h
}

func (h *hostile) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	kind, ref := path.Base(path.Dir(r.URL.Path)), path.Base(r.URL.Path)
	body := h.manifest
	switch {
	case strings.TrimSuffix(r.URL.Path, "/") == "/v2":
		return
	case kind == "manifests":
		w.Header().Set("Content-Type", h.mediaType)
		if !strings.Contains(ref, ":") {
			w.Header().Set("Docker-Content-Digest", digest.FromBytes(body).String())
		}
	default:
		var ok bool
		if body, ok = h.blobs[digest.Digest(ref)]; !ok {
			http.NotFound(w, r)
			return
		}
	}
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	if r.Method == http.MethodHead {
		return
	}
	if h.cut && kind == "blobs" {
		_, _ = w.Write(body[:len(body)/2])
		panic(http.ErrAbortHandler)
	}
	_, _ = w.Write(body)
}

// build makes an image of one layer.
func build(t *testing.T, files ...ociimage.File) ociimage.Built {
	t.Helper()
	b, err := ociimage.Image{Layers: []ociimage.Layer{{Files: files}}, Config: ocispec.ImageConfig{Cmd: []string{"/x"}}}.Build()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// Whatever a registry sends: a clear error, and nothing is kept.
func TestHostileRegistry(t *testing.T) {
	plain := func(t *testing.T) ociimage.Built {
		return build(t, ociimage.File{Path: "x", Mode: 0o755, Data: []byte("hello")})
	}
	outside := "/escaped-by-a-layer"
	for _, tc := range []struct {
		name, code string
		build      func(t *testing.T) ociimage.Built
		change     func(t *testing.T, h *hostile)
		reference  string // after host/; "image:1" if empty
	}{
		{name: "the image is good", code: "OK"},
		{name: "manifest is not JSON", code: "InvalidArgument", change: func(_ *testing.T, h *hostile) { h.manifest = []byte("{") }},
		{name: "manifest is empty", code: "InvalidArgument", change: func(_ *testing.T, h *hostile) { h.manifest = []byte("{}") }},
		{
			name: "manifest is HTML", code: "InvalidArgument",
			change: func(_ *testing.T, h *hostile) { h.manifest, h.mediaType = []byte("<html>login</html>"), "text/html" },
		},
		{name: "manifest without layers digest", code: "InvalidArgument", change: func(t *testing.T, h *hostile) {
			rewrite(t, h, func(m *ocispec.Manifest) { m.Layers[0].Digest = "sha256:short" })
		}},
		{name: "layer size is a lie", code: "InvalidArgument", change: func(t *testing.T, h *hostile) {
			rewrite(t, h, func(m *ocispec.Manifest) { m.Layers[0].Size -= 3 })
		}},
		{name: "index without this platform", code: "NotFound", change: func(t *testing.T, h *hostile) {
			raw, err := json.Marshal(ocispec.Index{
				Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageIndex,
				Manifests: []ocispec.Descriptor{{
					MediaType: ocispec.MediaTypeImageManifest, Digest: digest.FromBytes(h.manifest), Size: int64(len(h.manifest)),
					Platform: &ocispec.Platform{OS: "plan9", Architecture: "mips"},
				}},
			})
			if err != nil {
				t.Fatal(err)
			}
			h.manifest, h.mediaType = raw, ocispec.MediaTypeImageIndex
		}},
		{
			name: "wrong digest of the manifest", code: "InvalidArgument",
			reference: "image@sha256:0000000000000000000000000000000000000000000000000000000000000000",
		},
		{name: "wrong digest of a layer", code: "InvalidArgument", change: func(_ *testing.T, h *hostile) {
			for d, b := range h.blobs {
				if len(b) > 2 && b[0] == 0x1f {
					swapped := append([]byte(nil), b...)
					swapped[len(swapped)/2] ^= 0xff
					h.blobs[d] = swapped
				}
			}
		}},
		{name: "connection cut in each blob", code: "Unavailable", change: func(_ *testing.T, h *hostile) { h.cut = true }},
		{name: "missing blob", code: "NotFound", change: func(_ *testing.T, h *hostile) { h.blobs = nil }},
		{name: "path out of the layer", code: "InvalidArgument", build: func(t *testing.T) ociimage.Built {
			return build(t, ociimage.File{Path: "../../../../../../../.." + outside, Mode: 0o644, Data: []byte("x")})
		}},
		{name: "file through an absolute symlink", code: "InvalidArgument", build: func(t *testing.T) ociimage.Built {
			return build(
				t,
				ociimage.File{Path: "out", Symlink: "/../../../../../../.."},
				ociimage.File{Path: "out" + outside, Mode: 0o644, Data: []byte("x")},
			)
		}},
		{name: "file through a climbing symlink", code: "InvalidArgument", build: func(t *testing.T) ociimage.Built {
			return build(
				t,
				ociimage.File{Path: "out", Symlink: "../../../../../../../.."},
				ociimage.File{Path: "out" + outside, Mode: 0o644, Data: []byte("x")},
			)
		}},
		{name: "hard link to a file outside", code: "InvalidArgument", build: func(t *testing.T) ociimage.Built {
			return build(t, ociimage.File{Path: "passwd", Hardlink: "../../../../../../../../etc/passwd"})
		}},
		{name: "whiteout of what is outside", code: "InvalidArgument", build: func(t *testing.T) ociimage.Built {
			return build(t, ociimage.File{Path: "a", Mode: fs.ModeDir | 0o755}, ociimage.File{Path: "a/../../../../.wh.etc"})
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			make := tc.build
			if make == nil {
				make = plain
			}
			h := newHostile(t, make(t))
			if tc.change != nil {
				tc.change(t, h)
			}
			n := newNode(t, testkit.Options{Registries: []string{h.addr}})
			check := n.noLeaks()
			ref := tc.reference
			if ref == "" {
				ref = "image:1"
			}
			_, err := n.Images.PullImage(n.ctx(), &cri.PullImageRequest{Image: &cri.ImageSpec{Image: h.addr + "/" + ref}})
			wantCode(t, "pull", err, tc.code)
			if _, err := os.Lstat(outside); err == nil {
				t.Errorf("%s was written", outside)
				_ = os.Remove(outside)
			}
			if tc.code != "OK" {
				check()
			}
		})
	}
}

// rewrite changes the manifest.
func rewrite(t *testing.T, h *hostile, change func(*ocispec.Manifest)) {
	t.Helper()
	var m ocispec.Manifest
	if err := json.Unmarshal(h.manifest, &m); err != nil {
		t.Fatal(err)
	}
	change(&m)
	raw, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	h.manifest = raw
}

// Names that lead nowhere.
func TestPullNothing(t *testing.T) {
	closed := testkit.RefusingAddr(t)
	silent, err := net.Listen("tcp", "127.0.0.1:0") // accepts, says nothing
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	n := newNode(t, testkit.Options{Registries: []string{closed, silent.Addr().String()}})
	check := n.noLeaks()
	for _, tc := range []struct{ name, ref, code string }{
		{"unknown tag", registry.Addr + "/test/busybox:none", "NotFound"},
		{"unknown repository", registry.Addr + "/none:1", "NotFound"},
		{"unknown digest", registry.Addr + "/test/busybox@sha256:" + strings.Repeat("0", 64), "NotFound"},
		{"no one listens", closed + "/image:1", "Unavailable"},
		{"upper case", registry.Addr + "/Test/UPPER:1", "InvalidArgument"},
		{"empty", "", "InvalidArgument"},
		{"short digest", registry.Addr + "/test/busybox@sha256:abc", "InvalidArgument"},
	} {
		_, err := n.Images.PullImage(n.ctx(), &cri.PullImageRequest{Image: &cri.ImageSpec{Image: tc.ref}})
		wantCode(t, tc.name, err, tc.code)
	}
	// A registry that hangs: the caller's deadline holds.
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_, err = n.Images.PullImage(ctx, &cri.PullImageRequest{Image: &cri.ImageSpec{Image: silent.Addr().String() + "/image:1"}})
	wantCode(t, "silent registry", err, "DeadlineExceeded")
	check()
}
