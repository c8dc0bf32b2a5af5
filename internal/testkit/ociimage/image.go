// Package ociimage makes small images for tests, the demo and benchmarks, byte for
// byte the same each time, and pushes them to a registry.
//
//	img := ociimage.Image{
//		Layers: []ociimage.Layer{{Files: []ociimage.File{{Path: "bin/web", Source: "bin/test/web", Mode: 0o755}}}},
//		Config: ocispec.ImageConfig{Entrypoint: []string{"/bin/web"}},
//	}
//	built, err := img.Build()
//	err = ociimage.Push(ctx, "127.0.0.1:5000/demo:1", built, ociimage.Registry{PlainHTTP: true})
package ociimage

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path"
	"runtime"
	"strings"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// File is one entry of a layer. At most one of Data, Source, Symlink and Hardlink
// is set; with none of them, Mode says whether it is a directory or an empty file.
type File struct {
	Path     string // without a leading slash, unless a test wants one
	Mode     fs.FileMode
	Data     []byte
	Source   string // a file of the host
	Symlink  string
	Hardlink string
	UID, GID int
	Xattrs   map[string]string
}

// Compression is how a layer's blob is packed.
type Compression string

// The compressions; the zero value is Gzip.
const (
	Gzip  Compression = "gzip"
	Zstd  Compression = "zstd"
	Plain Compression = "plain"
	// Estargz is gzip in chunks of 64 KiB, with a table of contents that the manifest names.
	Estargz Compression = "estargz"
)

// Layer is one layer, lowest entry first. Parents are not made by themselves.
type Layer struct {
	Files       []File
	Compression Compression
}

// Image is what to build. Docker chooses Docker's schema-2 media types.
type Image struct {
	Layers []Layer
	Config ocispec.ImageConfig
	Docker bool
}

// Built is an image as blobs: layers first, then the config, then the manifest.
type Built struct {
	Manifest ocispec.Descriptor
	Blobs    map[digest.Digest][]byte
	// Order is the order to push in, the manifest last.
	Order []ocispec.Descriptor
}

// Over returns the image with more layers on top and another configuration.
func (i Image) Over(c ocispec.ImageConfig, more ...Layer) Image {
	i.Layers = append(i.Layers[:len(i.Layers):len(i.Layers)], more...)
	i.Config = c
	return i
}

// Build packs the image.
func (i Image) Build() (Built, error) {
	b := Built{Blobs: map[digest.Digest][]byte{}}
	config := ocispec.Image{
		Platform: ocispec.Platform{OS: "linux", Architecture: runtime.GOARCH},
		Config:   i.Config,
		RootFS:   ocispec.RootFS{Type: "layers"},
	}
	manifest := ocispec.Manifest{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest}
	configType := ocispec.MediaTypeImageConfig
	if i.Docker {
		manifest.MediaType = "application/vnd.docker.distribution.manifest.v2+json"
		configType = "application/vnd.docker.container.image.v1+json"
	}
	for n, l := range i.Layers {
		plain, err := l.tar()
		if err != nil {
			return Built{}, fmt.Errorf("layer %d: %w", n, err)
		}
		if l.Compression == Estargz {
			d, diffID, err := b.addEstargz(plain)
			if err != nil {
				return Built{}, fmt.Errorf("layer %d: %w", n, err)
			}
			config.RootFS.DiffIDs = append(config.RootFS.DiffIDs, diffID)
			manifest.Layers = append(manifest.Layers, d)
			continue
		}
		packed, mediaType, err := l.pack(plain, i.Docker)
		if err != nil {
			return Built{}, fmt.Errorf("layer %d: %w", n, err)
		}
		config.RootFS.DiffIDs = append(config.RootFS.DiffIDs, digest.FromBytes(plain))
		manifest.Layers = append(manifest.Layers, b.Add(mediaType, packed))
	}
	raw, err := json.Marshal(config)
	if err != nil {
		return Built{}, err
	}
	manifest.Config = b.Add(configType, raw)
	if raw, err = json.Marshal(manifest); err != nil {
		return Built{}, err
	}
	b.Manifest = b.Add(manifest.MediaType, raw)
	return b, nil
}

// Add puts one blob at the end of the image; tests add broken ones.
func (b *Built) Add(mediaType string, blob []byte) ocispec.Descriptor {
	d := ocispec.Descriptor{MediaType: mediaType, Digest: digest.FromBytes(blob), Size: int64(len(blob))}
	b.Blobs[d.Digest] = blob
	b.Order = append(b.Order, d)
	return d
}

// tar is the layer, unpacked; all times are the epoch.
func (l Layer) tar() ([]byte, error) {
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, f := range l.Files {
		h := &tar.Header{
			Name: f.Path, Mode: unixMode(f.Mode), ModTime: time.Unix(0, 0), Uid: f.UID, Gid: f.GID,
			Typeflag: tar.TypeReg, Format: tar.FormatPAX,
		}
		data := f.Data
		switch {
		case f.Symlink != "":
			h.Typeflag, h.Linkname = tar.TypeSymlink, f.Symlink
		case f.Hardlink != "":
			h.Typeflag, h.Linkname = tar.TypeLink, f.Hardlink
		case f.Mode.IsDir():
			h.Typeflag, h.Name = tar.TypeDir, strings.TrimSuffix(f.Path, "/")+"/"
		case f.Source != "":
			var err error
			if data, err = os.ReadFile(f.Source); err != nil {
				return nil, err
			}
		}
		for name, value := range f.Xattrs {
			if h.PAXRecords == nil {
				h.PAXRecords = map[string]string{}
			}
			h.PAXRecords["SCHILY.xattr."+name] = value
		}
		h.Size = int64(len(data))
		if err := w.WriteHeader(h); err != nil {
			return nil, err
		}
		if _, err := w.Write(data); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return buf.Bytes(), nil
}

// pack compresses a layer and names its media type.
func (l Layer) pack(plain []byte, docker bool) ([]byte, string, error) {
	mediaType := ocispec.MediaTypeImageLayer
	if docker {
		mediaType = "application/vnd.docker.image.rootfs.diff.tar"
	}
	var buf bytes.Buffer
	switch l.Compression {
	case Plain:
		return plain, mediaType, nil
	case Zstd:
		w, err := zstd.NewWriter(&buf)
		if err != nil {
			return nil, "", err
		}
		if _, err := w.Write(plain); err != nil {
			return nil, "", err
		}
		if err := w.Close(); err != nil {
			return nil, "", err
		}
		return buf.Bytes(), mediaType + "+zstd", nil
	case Gzip, "":
		w, err := gzip.NewWriterLevel(&buf, gzip.BestSpeed)
		if err != nil {
			return nil, "", err
		}
		if _, err := w.Write(plain); err != nil {
			return nil, "", err
		}
		if err := w.Close(); err != nil {
			return nil, "", err
		}
		if docker {
			return buf.Bytes(), mediaType + ".gzip", nil
		}
		return buf.Bytes(), mediaType + "+gzip", nil
	}
	return nil, "", fmt.Errorf("compression %q: unknown", l.Compression)
}

func unixMode(m fs.FileMode) int64 {
	v := int64(m.Perm())
	for bit, unix := range map[fs.FileMode]int64{fs.ModeSetuid: 0o4000, fs.ModeSetgid: 0o2000, fs.ModeSticky: 0o1000} {
		if m&bit != 0 {
			v |= unix
		}
	}
	return v
}

// Dirs are directory entries with mode 0755, parents first.
func Dirs(paths ...string) []File {
	var files []File
	seen := map[string]bool{}
	var add func(p string)
	add = func(p string) {
		if p == "." || p == "/" || seen[p] {
			return
		}
		add(path.Dir(p))
		seen[p] = true
		files = append(files, File{Path: p, Mode: fs.ModeDir | 0o755})
	}
	for _, p := range paths {
		add(path.Clean(p))
	}
	return files
}
