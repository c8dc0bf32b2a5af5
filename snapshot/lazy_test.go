package snapshot

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"
)

// showLayer is who shows lazy layers: a tmpfs with one file.
func showLayer(t *testing.T, s *Store, name, says string) digest.Digest {
	t.Helper()
	d := digest.FromString(name)
	dir, err := s.BeginLazy(d)
	must(t, err)
	at := filepath.Join(dir, "fs")
	must(t, unix.Mount("tmpfs", at, "tmpfs", 0, "size=64k"))
	write(t, filepath.Join(at, "file"), says)
	write(t, filepath.Join(dir, "blob"), "what has come")
	must(t, s.CommitLazy(d, digest.FromString("blob of "+name), digest.FromString("table of "+name)))
	return d
}

// lazyBlob is the blob that a layer is shown from; "" if it is not.
func lazyBlob(s *Store, d digest.Digest) digest.Digest {
	blob, _ := s.LazySource(d)
	return blob
}

func allShown(digest.Digest) bool { return true }

// A root can be made of a lazy layer, which does not count as whole, and goes on with it when the
// layer is unpacked; the next is made of the unpacked one.
func TestLazyLayerBecomesWhole(t *testing.T) {
	s := started(t, t.TempDir())
	d := showLayer(t, s, "x", "lazy")
	if s.HasLayer(d) || lazyBlob(s, d) != digest.FromString("blob of x") {
		t.Errorf("whole %t, blob %s", s.HasLayer(d), lazyBlob(s, d))
	}
	if _, err := s.OpenLayer(t.Context(), d); !errors.Is(err, ErrLayerMissing) {
		t.Errorf("open: %v", err)
	}
	if u, err := s.LayerUsage(d); err != nil || u.Bytes == 0 {
		t.Errorf("usage %v, %v", u, err)
	}
	if _, err := s.BeginLazy(d); !errors.Is(err, ErrLayerExists) {
		t.Errorf("again: %v", err)
	}
	old, err := s.Prepare(t.Context(), "old", PrepareOptions{Layers: []digest.Digest{d}, Target: filepath.Join(t.TempDir(), "root")})
	must(t, err)
	if err := s.RemoveLayer(t.Context(), d); !errors.Is(err, ErrLayerInUse) {
		t.Errorf("remove: %v", err)
	}
	commitLayer(t, s, "x", func(dir string) { write(t, filepath.Join(dir, "file"), "whole") })
	if !s.HasLayer(d) || lazyBlob(s, d) != "" || s.LayerDir(d) != filepath.Join(layerDir(s, d), "fs") {
		t.Errorf("whole %t, blob %s", s.HasLayer(d), lazyBlob(s, d))
	}
	must(t, s.EndLazy(d))
	must(t, s.Flush(t.Context()))
	if left, err := os.ReadDir(lazyTop(s)); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
	next, err := s.Prepare(t.Context(), "next", PrepareOptions{Layers: []digest.Digest{d}, Target: filepath.Join(t.TempDir(), "root")})
	must(t, err)
	if a, b := read(t, filepath.Join(old.Target, "file")), read(t, filepath.Join(next.Target, "file")); a != "lazy" || b != "whole" {
		t.Errorf("the old root says %q, the next %q", a, b)
	}
	// The lazy root holds the unpacked layer, which it may read from.
	must(t, s.Remove(t.Context(), "next"))
	if err := s.RemoveLayer(t.Context(), d); !errors.Is(err, ErrLayerInUse) {
		t.Errorf("remove: %v", err)
	}
	must(t, s.Remove(t.Context(), "old"))
	must(t, s.RemoveLayer(t.Context(), d))
}

func TestLazyLayerIsRemoved(t *testing.T) {
	s := started(t, t.TempDir())
	for what, remove := range map[string]func(digest.Digest) error{
		"removed":     func(d digest.Digest) error { return s.RemoveLayer(t.Context(), d) },
		"quarantined": s.Quarantine,
		"dropped":     func(digest.Digest) error { return s.DropLazy() },
	} {
		d := showLayer(t, s, what, "lazy")
		if err := s.EndLazy(d); err == nil {
			t.Errorf("%s: a layer that is not unpacked was ended", what)
		}
		must(t, remove(d))
		if lazyBlob(s, d) != "" {
			t.Errorf("%s: it is still there", what)
		}
		if _, err := os.Stat(lazyDir(s, d)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: its directory is left: %v", what, err)
		}
	}
}

// After a restart a lazy layer is there if someone shows it, and else not: what was mounted then
// may answer no one.
func TestLazyLayerAfterRestart(t *testing.T) {
	root := t.TempDir()
	s := startedWith(t, Config{Root: root})
	kept := showLayer(t, s, "kept", "lazy")
	lost := showLayer(t, s, "lost", "lazy")
	whole := showLayer(t, s, "whole", "lazy")
	commitLayer(t, s, "whole", func(dir string) { write(t, filepath.Join(dir, "file"), "whole") })
	begun, err := s.BeginLazy(digest.FromString("begun"))
	must(t, err)
	must(t, s.Close())

	s = startedWith(t, Config{Root: root, Shown: func(d digest.Digest) bool { return d != lost }})
	if lazyBlob(s, kept) != digest.FromString("blob of kept") || lazyBlob(s, lost) != "" || s.layers.HasAny(lost) || !s.HasLayer(whole) {
		t.Errorf("kept %s, lost %s", lazyBlob(s, kept), lazyBlob(s, lost))
	}
	if _, err := os.Stat(begun); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("what was only begun is left: %v", err)
	}
	if _, toc := s.LazySource(kept); toc != digest.FromString("table of kept") {
		t.Errorf("kept by table %q", toc)
	}
	must(t, s.EndLazy(whole))
	noTable := showLayer(t, s, "no table", "lazy")
	must(t, os.WriteFile(filepath.Join(lazyDir(s, kept), "lazy.json"), []byte("{"), 0o600))
	must(t, os.WriteFile(filepath.Join(lazyDir(s, noTable), "lazy.json"),
		fmt.Appendf(nil, `{"version":1,"diffID":%q,"blob":%q}`, noTable, digest.FromString("blob of no table")), 0o600))
	must(t, s.Close())

	s = startedWith(t, Config{Root: root, Shown: allShown})
	if s.layers.HasAny(kept) || s.layers.HasAny(noTable) {
		t.Error("a layer without a valid record is there")
	}
	if left, err := os.ReadDir(lazyTop(s)); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

func TestLazyLayerNeedsOverlay(t *testing.T) {
	s := startedWith(t, Config{Root: t.TempDir(), Driver: Native})
	if _, err := s.BeginLazy(digest.FromString("x")); !errors.Is(err, ErrUnsupported) {
		t.Errorf("native: %v", err)
	}
	if _, err := s.BeginLazy("sha256:short"); !errors.Is(err, ErrInvalid) {
		t.Errorf("digest: %v", err)
	}
}

// A layer that came in another way meanwhile wins.
func TestLazyLayerComesTooLate(t *testing.T) {
	s := started(t, t.TempDir())
	d := digest.FromString("x")
	_, err := s.BeginLazy(d)
	must(t, err)
	commitLayer(t, s, "x", func(string) {})
	if err := s.CommitLazy(d, digest.FromString("blob"), digest.FromString("table")); !errors.Is(err, ErrLayerExists) {
		t.Errorf("commit: %v", err)
	}
	must(t, s.AbortLazy(d))
}
