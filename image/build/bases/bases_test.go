package bases

import (
	"archive/tar"
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	imagesv1 "github.com/coracle-project/coracle/image/api/v1"
)

// store is a fake coracled: images by name, as archives, and what can be pulled.
type store struct {
	imagesv1.ImagesClient
	have, remote map[string][]byte
	pulled       []string
}

func (s *store) Inspect(_ context.Context, r *imagesv1.InspectRequest, _ ...grpc.CallOption) (*imagesv1.InspectResponse, error) {
	if _, ok := s.have[r.GetImage()]; !ok {
		return nil, status.Error(codes.NotFound, "image not found")
	}
	return &imagesv1.InspectResponse{}, nil
}

func (s *store) Pull(_ context.Context, r *imagesv1.PullRequest, _ ...grpc.CallOption) (imagesv1.Images_PullClient, error) {
	s.pulled = append(s.pulled, r.GetImage())
	data, ok := s.remote[r.GetImage()]
	if !ok {
		return nil, status.Error(codes.NotFound, "the registry has no "+r.GetImage())
	}
	s.have[r.GetImage()] = data
	return &messages[imagesv1.Progress]{left: []*imagesv1.Progress{{Done: 1}, {}}}, nil
}

func (s *store) Save(_ context.Context, r *imagesv1.SaveRequest, _ ...grpc.CallOption) (imagesv1.Images_SaveClient, error) {
	m := &messages[imagesv1.Chunk]{left: []*imagesv1.Chunk{{Total: 1}}}
	for data := s.have[r.GetImages()[0]]; len(data) > 0; {
		n := min(100, len(data))
		m.left = append(m.left, &imagesv1.Chunk{Data: data[:n]})
		data = data[n:]
	}
	return m, nil
}

// messages is a stream that is known beforehand.
type messages[M any] struct {
	grpc.ClientStream
	left []*M
}

func (s *messages[M]) Recv() (*M, error) {
	if len(s.left) == 0 {
		return nil, io.EOF
	}
	m := s.left[0]
	s.left = s.left[1:]
	return m, nil
}

var manifest = digest.FromString("manifest")

// archive is an OCI archive with one image; more are its other files.
func archive(more ...string) []byte {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	add := func(name, data string) {
		_ = w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Size: int64(len(data)), Mode: 0o644})
		_, _ = w.Write([]byte(data))
	}
	add("oci-layout", `{"imageLayoutVersion":"1.0.0"}`)
	add("index.json", `{"schemaVersion":2,"manifests":[{"digest":"`+manifest.String()+`","size":8}]}`)
	for _, name := range more {
		add(name, "manifest")
	}
	_ = w.Close()
	return b.Bytes()
}

func TestCollect(t *testing.T) {
	blob := "blobs/sha256/" + manifest.Encoded()
	for _, tc := range []struct {
		name         string
		refs         []string
		have, remote []string
		fresh        Freshness
		pulled       []string
		says         string
	}{
		{"none", nil, nil, nil, IfMissing, nil, ""},
		{"here", []string{"a"}, []string{"a"}, nil, IfMissing, nil, ""},
		{"elsewhere", []string{"a", "b"}, []string{"a"}, []string{"b"}, IfMissing, []string{"b"}, ""},
		{"always", []string{"a", "b"}, []string{"a"}, []string{"a", "b"}, Always, []string{"a", "b"}, ""},
		{"made here", []string{"a"}, []string{"a"}, nil, Always, []string{"a"}, ""},
		{"nowhere", []string{"a"}, nil, nil, IfMissing, []string{"a"}, "the registry has no a"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := &store{have: map[string][]byte{}, remote: map[string][]byte{}}
			for _, n := range tc.have {
				s.have[n] = archive(blob, "../evil", "blobs/sha256/short")
			}
			for _, n := range tc.remote {
				s.remote[n] = archive(blob)
			}
			dir := filepath.Join(t.TempDir(), "layout")
			found, err := Collect(t.Context(), s, tc.refs, tc.fresh, dir, func(string) {})
			if !slices.Equal(s.pulled, tc.pulled) {
				t.Errorf("pulled %q, want %q", s.pulled, tc.pulled)
			}
			if tc.says != "" {
				if err == nil || err.Error() != tc.says {
					t.Errorf("error %v, want %s", err, tc.says)
				}
				return
			}
			if err != nil || len(found) != len(tc.refs) {
				t.Fatalf("found %v, %v", found, err)
			}
			for _, ref := range tc.refs {
				if found[ref] != manifest {
					t.Errorf("%s is %s", ref, found[ref])
				}
				if data, err := os.ReadFile(filepath.Join(dir, blob)); err != nil || string(data) != "manifest" {
					t.Errorf("blob %q, %v", data, err)
				}
			}
			if evil, _ := filepath.Glob(filepath.Join(filepath.Dir(dir), "evil")); len(evil) > 0 {
				t.Error("a file was written outside")
			}
		})
	}
}

func TestExtractRefuses(t *testing.T) {
	for name, data := range map[string][]byte{
		"no archive": []byte("x"), "no index": archive()[:512], "cut off": archive()[:1600],
		"two images": bytes.Replace(archive(), []byte(`"manifests":[`), []byte(`"manifests":[{},`), 1),
	} {
		if d, err := extract(bytes.NewReader(data), t.TempDir()); err == nil {
			t.Errorf("%s: found %s", name, d)
		}
	}
	if _, err := manifestOf(strings.NewReader(`{"manifests":[{"digest":"sha256:../.."}]}`)); err == nil {
		t.Error("a digest that is none was accepted")
	}
}
