package server

import (
	"archive/tar"
	"bytes"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/containerd/stargz-snapshotter/estargz"
	"github.com/opencontainers/go-digest"

	"github.com/coracle-project/coracle/image/lazy"
	"github.com/coracle-project/coracle/image/registry"
)

// smallLayer is an estargz blob whose table of contents shares its last page with the footer.
func smallLayer(t *testing.T) (blob []byte, table digest.Digest) {
	t.Helper()
	var plain bytes.Buffer
	w := tar.NewWriter(&plain)
	if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "file", Mode: 0o644, Size: 5}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	b, err := estargz.Build(io.NewSectionReader(bytes.NewReader(plain.Bytes()), 0, int64(plain.Len())))
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	if blob, err = io.ReadAll(b); err != nil {
		t.Fatal(err)
	}
	return blob, b.TOCDigest()
}

// A page of the blob's file that has some bytes of it need not have all.
func TestTableBesideFooter(t *testing.T) {
	blob, table := smallLayer(t)
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(blob))
	}))
	defer web.Close()
	domain := strings.TrimPrefix(web.URL, "http://")
	l := lazy.Layer{
		DiffID: digest.FromString("layer"), Blob: digest.FromBytes(blob), Size: int64(len(blob)), TOC: table, Timeout: time.Hour,
		Domain: domain, Path: "app", Dir: t.TempDir(), Hosts: registry.Config{Settings: map[string]registry.Settings{domain: {PlainHTTP: true}}},
	}
	s := New(nil, slog.New(slog.DiscardHandler))
	read := func(create bool) error {
		x, err := s.newShown("key", l)
		if err != nil {
			t.Fatal(err)
		}
		defer x.source.close()
		return x.readTable(t.Context(), create)
	}
	if err := read(true); err != nil {
		t.Error(err)
	}
	web.Close()
	if err := read(false); err != nil {
		t.Errorf("by the process that comes next, without the registry: %v", err)
	}
}
