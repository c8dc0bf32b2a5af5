package snapshot

import (
	"context"
	_ "crypto/sha512" // for digests that are refused
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/opencontainers/go-digest"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/snapshot/layer"
)

// How layers say what they hide, and archives what attributes a file has.
const (
	whiteoutPrefix = ".wh."
	opaqueFile     = ".wh..wh..opq"
	opaqueXattr    = "trusted.overlay.opaque"
	xattrRecord    = "SCHILY.xattr."
)

func TestMain(m *testing.M) {
	if os.Geteuid() != 0 {
		fmt.Fprintln(os.Stderr, "these tests mount overlays: run them as root")
		os.Exit(1)
	}
	goleak.VerifyTestMain(m)
}

// started returns a running store on root. The test's end removes its snapshots
// and checks that no mount is left.
func started(t testing.TB, root string) *Store {
	t.Helper()
	return startedWith(t, Config{Root: root})
}

// startedWith is started with other settings than the root; the log is discarded.
func startedWith(t testing.TB, c Config) *Store {
	t.Helper()
	c.Log = slog.New(slog.DiscardHandler)
	s := New(c)
	if err := s.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, snap := range s.List() {
			if err := s.Remove(context.WithoutCancel(t.Context()), snap.ID); err != nil {
				t.Error(err)
			}
		}
		_ = s.Close()
		left, err := s.driver.Mounts(s.snapshotsDir())
		if err != nil || len(left) > 0 {
			t.Errorf("mounts left: %v, %v", left, err)
		}
	})
	return s
}

// restarted closes the store and starts another on its root, as after kill -9.
func restarted(t testing.TB, s *Store) *Store {
	t.Helper()
	_ = s.Close()
	return started(t, s.root)
}

// commitLayer makes a layer out of what fill writes to a directory.
func commitLayer(t testing.TB, s *Store, name string, fill func(dir string)) digest.Digest {
	t.Helper()
	w, err := s.NewLayer(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	fill(w.Dir())
	d := digest.FromString(name)
	if err := w.Commit(t.Context(), d); err != nil {
		t.Fatal(err)
	}
	return d
}

// commitLayers makes n layers; layer i has the files "i" and "top", both saying i.
func commitLayers(t testing.TB, s *Store, n int) []digest.Digest {
	t.Helper()
	var layers []digest.Digest
	for i := range n {
		layers = append(layers, commitLayer(t, s, fmt.Sprint("layer ", i), func(dir string) {
			write(t, filepath.Join(dir, fmt.Sprint(i)), fmt.Sprint(i))
			write(t, filepath.Join(dir, "top"), fmt.Sprint(i))
		}))
	}
	return layers
}

func write(t testing.TB, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

func read(t testing.TB, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func exists(path string) bool {
	var st unix.Stat_t
	return unix.Lstat(path, &st) == nil
}

func layerDir(s *Store, d digest.Digest) string { return filepath.Join(layer.Top(s.root), d.Encoded()) }
func quarantineDir(s *Store) string             { return filepath.Join(s.root, "quarantine") }
func lazyTop(s *Store) string                   { return filepath.Join(s.root, "lazy") }
func lazyDir(s *Store, d digest.Digest) string  { return filepath.Join(lazyTop(s), d.Encoded()) }
