package ociimage

import (
	"io/fs"
	"path/filepath"
	"testing"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

func TestBuildRepeats(t *testing.T) {
	for _, c := range []Compression{Gzip, Zstd, Plain} {
		for _, docker := range []bool{false, true} {
			img := Image{
				Layers: []Layer{{Compression: c, Files: append(Dirs("a/b"), File{Path: "a/b/c", Mode: 0o644, Data: []byte("x")})}},
				Config: ocispec.ImageConfig{Cmd: []string{"/a/b/c"}},
				Docker: docker,
			}
			one, err := img.Build()
			if err != nil {
				t.Fatal(err)
			}
			two, err := img.Build()
			if err != nil {
				t.Fatal(err)
			}
			if one.Manifest.Digest != two.Manifest.Digest {
				t.Errorf("%s docker=%v: two builds, digests %s and %s", c, docker, one.Manifest.Digest, two.Manifest.Digest)
			}
			if len(one.Order) != 3 || one.Order[2].Digest != one.Manifest.Digest {
				t.Errorf("%s docker=%v: order %v", c, docker, one.Order)
			}
		}
	}
}

func TestBuildRejects(t *testing.T) {
	for _, tc := range []struct {
		name  string
		layer Layer
	}{
		{"missing source", Layer{Files: []File{{Path: "x", Source: filepath.Join(t.TempDir(), "none")}}}},
		{"unknown compression", Layer{Compression: "lzma"}},
	} {
		if _, err := (Image{Layers: []Layer{tc.layer}}).Build(); err == nil {
			t.Errorf("%s: no error", tc.name)
		}
	}
}

func TestUnixMode(t *testing.T) {
	if got := unixMode(fs.ModeSetuid | 0o755); got != 0o4755 {
		t.Errorf("unixMode(setuid 755) = %o", got)
	}
}
