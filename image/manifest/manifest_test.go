package manifest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/coracle-project/coracle/image/reference"
	"github.com/coracle-project/coracle/image/registry"
)

func TestAmbiguousDocuments(t *testing.T) {
	d := string(digest.FromString("x"))
	for name, c := range map[string]struct{ data, mediaType string }{
		"both":              {`{"schemaVersion":2,"manifests":[],"layers":[],"config":{}}`, ""},
		"neither":           {`{"schemaVersion":2}`, ""},
		"index as manifest": {`{"schemaVersion":2,"manifests":[]}`, ocispec.MediaTypeImageManifest},
		"manifest as index": {
			`{"schemaVersion":2,"layers":[],"config":{"mediaType":"` + DockerConfig + `","digest":"` + d + `"}}`,
			DockerIndex,
		},
		"contradicting types":   {`{"schemaVersion":2,"mediaType":"` + DockerIndex + `","manifests":[]}`, ocispec.MediaTypeImageManifest},
		"unknown type":          {`{"schemaVersion":2,"mediaType":"text/plain","manifests":[]}`, ""},
		"other schema":          {`{"schemaVersion":3,"manifests":[]}`, ""},
		"layers without config": {`{"schemaVersion":2,"layers":[]}`, ""},
		"trailing data":         {`{"schemaVersion":2,"manifests":[]} x`, ""},
		"negative size":         {`{"schemaVersion":2,"manifests":[{"digest":"` + d + `","size":-1}]}`, ""},
	} {
		if _, err := Parse([]byte(c.data), c.mediaType); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v, want ErrInvalid", name, err)
		}
	}
}

func FuzzDocument(f *testing.F) {
	d := string(digest.FromString("x"))
	f.Add(
		[]byte(`{"schemaVersion":2,"manifests":[{"digest":"`+d+`","size":1,"platform":{"os":"linux","architecture":"arm","variant":"v7"}}]}`),
		DockerIndex,
	)
	f.Add([]byte(`{"schemaVersion":2,"config":{"mediaType":"`+DockerConfig+`","digest":"`+d+`","size":2},"layers":[]}`), "")
	f.Add([]byte(`{"rootfs":{"diff_ids":["`+d+`"]}}`), "x")
	f.Fuzz(func(t *testing.T, data []byte, mediaType string) {
		doc, err := Parse(data, mediaType)
		if err != nil && !errors.Is(err, ErrInvalid) {
			t.Errorf("error %v is not ErrInvalid", err)
		}
		if err == nil {
			for _, m := range doc.Manifests {
				_ = PlatformScore(m.Platform)
				checkDigest(t, m.Digest)
			}
			for _, l := range doc.Layers {
				checkDigest(t, l.Digest)
			}
		}
		if c, err := parseConfig(data, 1); err == nil {
			checkDigest(t, c.RootFS.DiffIDs[0])
		}
	})
}

// A document of a few megabytes does not become hundreds in memory.
func TestDocumentsOfManyValues(t *testing.T) {
	many := "[" + strings.TrimSuffix(strings.Repeat("{},", 1_000_000), ",") + "]"
	for name, parse := range map[string]func() error{
		"layers": func() error { _, err := Parse([]byte(`{"schemaVersion":2,"layers":`+many+`}`), ""); return err },
		"manifests": func() error {
			_, err := Parse([]byte(`{"schemaVersion":2,"manifests":`+many+`}`), "")
			return err
		},
		"history": func() error { _, err := parseConfig([]byte(`{"history":`+many+`}`), 0); return err },
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		if err := parse(); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), "values") {
			t.Errorf("%s: %v", name, err)
		}
		runtime.ReadMemStats(&after)
		if took := after.TotalAlloc - before.TotalAlloc; took > 32<<20 {
			t.Errorf("%s: refusing it took %d bytes", name, took)
		}
	}
}

// Indexes within indexes are not read forever, nor kept in memory.
func TestDocumentsOfManyBytes(t *testing.T) {
	read := 0
	reader := func(_ context.Context, d ocispec.Descriptor) ([]byte, error) {
		read += int(d.Size)
		data := []byte(`{"schemaVersion":2,"manifests":[]}`)
		return append(data, bytes.Repeat([]byte(" "), int(d.Size)-len(data))...), nil
	}
	var index ocispec.Index
	index.SchemaVersion = 2
	for i := range maxManifestReads {
		index.Manifests = append(index.Manifests,
			ocispec.Descriptor{MediaType: ocispec.MediaTypeImageIndex, Digest: digest.FromString(fmt.Sprint(i)), Size: registry.MaxManifest})
	}
	data, _ := json.Marshal(index)
	top := ocispec.Descriptor{MediaType: ocispec.MediaTypeImageIndex, Digest: digest.FromBytes(data), Size: int64(len(data))}
	if _, err := Resolve(t.Context(), top, data, reader); !errors.Is(err, ErrInvalid) ||
		!strings.Contains(err.Error(), "have more than") || read > maxDocuments {
		t.Errorf("%d bytes read, %v", read, err)
	}
}

func checkDigest(t *testing.T, d digest.Digest) {
	t.Helper()
	if err := reference.CheckDigest(d); err != nil {
		t.Error(err)
	}
}
