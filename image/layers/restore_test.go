package layers

import (
	"archive/tar"
	"bytes"
	"io"
	"log/slog"
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
