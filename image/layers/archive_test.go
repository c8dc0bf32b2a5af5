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

	"github.com/coracle-project/coracle/image/unpack"
	"github.com/coracle-project/coracle/snapshot"
)

// Regression: verification gave up at the first EROFS layer that could not be mounted.
func TestArchiveOfDamagedLayer(t *testing.T) {
	root := t.TempDir()
	s := snapshot.New(snapshot.Config{Root: root, Driver: snapshot.EROFS})
	if err := s.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	w, err := s.NewLayer(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	d := digest.FromString("layer")
	if err := w.Commit(t.Context(), d); err != nil {
		t.Fatal(err)
	}
	image := filepath.Join(root, "layers/sha256", d.Encoded(), "layer.erofs")
	if err := os.WriteFile(image, make([]byte, 8192), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := New(Config{Node: s}).Archive(t.Context(), d, io.Discard); !errors.Is(err, unpack.ErrDamaged) {
		t.Errorf("%v", err)
	}
}

// copiedRig is a node's store with a layer of one file, and a copy of it for a handler.
func copiedRig(t *testing.T) (l *Store, d digest.Digest, bring func(), copied string) {
	t.Helper()
	dir := t.TempDir()
	log := slog.New(slog.DiscardHandler)
	node := snapshot.New(snapshot.Config{Root: filepath.Join(dir, "node"), Driver: snapshot.EROFS, Log: log})
	stores := New(Config{Root: filepath.Join(dir, "more"), Node: node, Driver: snapshot.EROFS, Log: log})
	try := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	try(node.Start(t.Context()))
	try(stores.Start(t.Context(), []snapshot.DriverName{snapshot.Native}))
	t.Cleanup(func() {
		if err := errors.Join(stores.Close(), node.Close()); err != nil {
			t.Error(err)
		}
	})
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	try(w.WriteHeader(&tar.Header{Name: "file", Typeflag: tar.TypeReg, Size: 7, Mode: 0o644}))
	_, err := w.Write([]byte("content"))
	try(err)
	try(w.Close())
	d = digest.FromBytes(b.Bytes())
	layer, err := node.NewLayer(t.Context())
	try(err)
	recipe, err := layer.Recipe()
	try(err)
	try(unpack.Layer(t.Context(), &b, unpack.Target{Dir: layer.Dir(), Markers: markers(node), Recipe: recipe}, unpack.Limits{MinFree: 1}))
	try(recipe.Close())
	try(layer.Commit(t.Context(), d))
	bring = func() {
		t.Helper()
		try(stores.Bring(t.Context(), snapshot.Native, []digest.Digest{d}))
	}
	return stores, d, bring, filepath.Join(dir, "more/native/layers/sha256", d.Encoded(), "fs/file")
}

// A handler's copy is compared with what the layer was made of, and made again when it is not that.
func TestDamagedCopy(t *testing.T) {
	l, d, bring, copied := copiedRig(t)
	if l.HasCopy(d) || l.CheckCopies(t.Context(), d) != nil {
		t.Error("there is a copy before anybody wants one")
	}
	for name, damage := range map[string]func() error{
		"changed": func() error { return os.WriteFile(copied, []byte("CONTENT"), 0o600) },
		"cut off": func() error { return os.Truncate(copied, 3) },
		"gone":    func() error { return os.Remove(copied) },
	} {
		bring()
		if err := l.CheckCopies(t.Context(), d); err != nil || !l.HasCopy(d) {
			t.Errorf("%s: before: %v", name, err)
		}
		if err := damage(); err != nil {
			t.Fatal(err)
		}
		if err := l.CheckCopies(t.Context(), d); !errors.Is(err, unpack.ErrDamaged) || !strings.Contains(err.Error(), "snapshotter native") {
			t.Errorf("%s: %v", name, err)
		}
		var made bytes.Buffer
		size, err := l.ArchiveSize(t.Context(), d)
		if err := errors.Join(err, l.Archive(t.Context(), d, &made)); err != nil || int64(made.Len()) != size {
			t.Errorf("%s: the layer itself has %d bytes, said to be %d: %v", name, made.Len(), size, err)
		}
		if err := l.DropCopies(d); err != nil || l.HasCopy(d) || !l.HasLayer(d) {
			t.Errorf("%s: drop: %v", name, err)
		}
	}
}
