package layers

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"

	"github.com/coracle-project/coracle/snapshot"
)

// TestLayerThatChanges: an archive that is another one when it is unpacked than when its digest was
// computed must not become a layer of that digest, which an image may have too.
func TestLayerThatChanges(t *testing.T) {
	store := snapshot.New(snapshot.Config{Root: t.TempDir(), Driver: snapshot.Native, Log: slog.New(slog.DiscardHandler)})
	if err := store.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	s := New(Config{Node: store})
	archive := layerWith(t, "etc/passwd")
	for name, c := range map[string]struct {
		digest digest.Digest
		ok     bool
	}{
		"the same": {digest.FromBytes(archive), true},
		"another":  {digest.FromString("another"), false},
	} {
		err := s.restore(t.Context(), bytes.NewReader(archive), c.digest)
		if (err == nil) != c.ok || store.HasLayer(c.digest) != c.ok {
			t.Errorf("%s: %v, layer: %t", name, err, store.HasLayer(c.digest))
		}
		if err != nil && !strings.Contains(err.Error(), "changed") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Regression: after a crash, the layer of a restored checkpoint could lack what its files held.
func TestRestoredLayerIsSynced(t *testing.T) {
	store := snapshot.New(snapshot.Config{Root: t.TempDir(), Driver: snapshot.Native, Log: slog.New(slog.DiscardHandler)})
	if err := store.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	archive := layerWith(t, "etc/passwd")
	d := digest.FromBytes(archive)
	synced, full := 0, errors.New("disk is full")
	s := New(Config{Node: store, sync: func(dir string) error {
		synced++
		if _, err := os.Stat(filepath.Join(dir, "etc/passwd")); err != nil || store.HasLayer(d) {
			t.Errorf("synced before the files are there (%v), or after the layer has its name", err)
		}
		if synced == 1 {
			return full
		}
		return syncFS(dir)
	}})
	if err := s.restore(t.Context(), bytes.NewReader(archive), d); !errors.Is(err, full) || store.HasLayer(d) {
		t.Errorf("without a sync: %v, layer: %t", err, store.HasLayer(d))
	}
	if err := s.restore(t.Context(), bytes.NewReader(archive), d); err != nil || synced != 2 || !store.HasLayer(d) {
		t.Errorf("%v, synced %d times, layer: %t", err, synced, store.HasLayer(d))
	}
}

// layerWith is a layer with one file.
func layerWith(t *testing.T, name string) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	if err := w.WriteHeader(&tar.Header{Name: name, Typeflag: tar.TypeReg, Size: 4, Mode: 0o644}); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(w, "file"); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}
