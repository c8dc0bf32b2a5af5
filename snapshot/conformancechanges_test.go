package snapshot

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// TestDriverChanges unpacks changes over the layers again: what shows is the same.
func TestDriverChanges(t *testing.T) {
	eachDriver(t, func(t *testing.T, s *Store) {
		layers := twoLayers(t, s)
		snap := prepared(t, s, "c", layers...)
		if names := archived(t, s, "c"); len(names) != 0 {
			t.Errorf("an untouched root has changes %v", names)
		}
		at := func(name string) string { return filepath.Join(snap.Target, name) }
		write(t, at("plain"), "changed")
		write(t, at("d/new"), "new")
		must(t, errors.Join(
			os.Link(at("d/new"), at("d/new2")), os.Remove(at("d/file")), os.RemoveAll(at("o")), os.Mkdir(at("o"), 0o711),
			os.Remove(at("link")), os.Symlink("elsewhere", at("link")), unix.Mkfifo(at("d/fifo"), 0o600), os.Remove(at("over")),
			unix.Chmod(at("suid"), 0o755), unix.Mknod(at("zero"), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 5))),
		))
		names := archived(t, s, "c")
		for _, want := range []string{"d/", "d/.wh.file", "d/new", "d/new2", "d/fifo", "link", ".wh.over", "suid", "zero", "plain"} {
			if !slices.Contains(names, want) {
				t.Errorf("changes lack %s: %v", want, names)
			}
		}
		for _, bad := range []string{"null", "sparse", "fifo", "./"} {
			if slices.Contains(names, bad) {
				t.Errorf("changes have %s, which did not change", bad)
			}
		}
		var archive bytes.Buffer
		must(t, s.Changes(t.Context(), "c", &archive))
		commit := commitLayer(t, s, "commit", func(dir string) { extract(t, s, &archive, dir) })
		if diff := cmp.Diff(looks(t, snap.Target), looks(t, prepared(t, s, "d", append(layers, commit)...).Target)); diff != "" {
			t.Error(diff)
		}
	})
}

// TestDriverFiles unpacks all that a root shows as its only layer: it shows the same.
func TestDriverFiles(t *testing.T) {
	eachDriver(t, func(t *testing.T, s *Store) {
		layers := twoLayers(t, s)
		snap, err := s.Prepare(t.Context(), "f", PrepareOptions{Layers: layers, Target: filepath.Join(t.TempDir(), "f"), Access: ReadOnly})
		must(t, err)
		if flags := mountOf(t, snap.Target).Options; !strings.Contains(flags, "nosuid") || !strings.Contains(flags, "nodev") {
			t.Errorf("mounted %q, to be looked at", flags)
		}
		var archive bytes.Buffer
		must(t, s.Files(t.Context(), "f", &archive))
		whole := commitLayer(t, s, "whole", func(dir string) { extract(t, s, &archive, dir) })
		if diff := cmp.Diff(looks(t, snap.Target), looks(t, prepared(t, s, "g", whole).Target)); diff != "" {
			t.Error(diff)
		}
		if err := s.Files(t.Context(), "none", &archive); !errors.Is(err, ErrNotFound) {
			t.Error(err)
		}
	})
}

func TestDriverChangesOfNothing(t *testing.T) {
	eachDriver(t, func(t *testing.T, s *Store) {
		snap := prepared(t, s, "c")
		write(t, filepath.Join(snap.Target, "file"), "x")
		must(t, os.Chmod(snap.Target, 0o700))
		if diff := cmp.Diff([]string{"./", "file"}, archived(t, s, "c")); diff != "" {
			t.Error(diff)
		}
		if err := s.Changes(t.Context(), "nobody", io.Discard); !errors.Is(err, ErrNotFound) {
			t.Errorf("unknown snapshot: %v", err)
		}
		write(t, filepath.Join(snap.Target, ".wh.file"), "x")
		if err := s.Changes(t.Context(), "c", io.Discard); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), ".wh.file") {
			t.Errorf("a file called like a whiteout: %v", err)
		}
	})
}

func archived(t *testing.T, s *Store, id string) []string {
	t.Helper()
	var b bytes.Buffer
	must(t, s.Changes(t.Context(), id, &b))
	var names []string
	for r := tar.NewReader(&b); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return names
		}
		must(t, err)
		names = append(names, h.Name)
	}
}

// extract is a small unpacker, for archives that these tests have made.
func extract(t *testing.T, s *Store, r io.Reader, dir string) {
	t.Helper()
	for tr := tar.NewReader(r); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return
		}
		must(t, err)
		path := filepath.Join(dir, h.Name)
		base := filepath.Base(path)
		switch {
		case base == opaqueFile:
			hideAll(t, s, filepath.Dir(path))
			continue
		case strings.HasPrefix(base, whiteoutPrefix):
			hide(t, s, filepath.Join(filepath.Dir(path), strings.TrimPrefix(base, whiteoutPrefix)))
			continue
		case h.Typeflag == tar.TypeDir:
			must(t, os.MkdirAll(path, 0o755))
		case h.Typeflag == tar.TypeLink:
			must(t, os.Link(filepath.Join(dir, h.Linkname), path))
			continue
		case h.Typeflag == tar.TypeSymlink:
			must(t, os.Symlink(h.Linkname, path))
		case h.Typeflag == tar.TypeFifo:
			must(t, unix.Mkfifo(path, 0o600))
		case h.Typeflag == tar.TypeChar:
			must(t, unix.Mknod(path, unix.S_IFCHR|0o600, int(unix.Mkdev(uint32(h.Devmajor), uint32(h.Devminor)))))
		default:
			data, err := io.ReadAll(tr)
			must(t, err)
			write(t, path, string(data))
		}
		must(t, os.Lchown(path, h.Uid, h.Gid))
		if v := h.PAXRecords[xattrRecord+"security.capability"]; v != "" {
			must(t, unix.Setxattr(path, "security.capability", []byte(v), 0))
		}
		if h.Typeflag != tar.TypeSymlink {
			must(t, unix.Chmod(path, uint32(h.Mode)))
			must(t, os.Chtimes(path, h.ModTime, h.ModTime))
		}
	}
}
