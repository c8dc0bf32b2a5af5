package diff

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// deepLayers makes layers that share a chain of directories, with a file in each.
func deepLayers(t *testing.T, layers, depth int) (dirs []string) {
	t.Helper()
	for i := range layers {
		dir := t.TempDir()
		at := filepath.Join(dir, FilesDir)
		for range depth {
			at = filepath.Join(at, "d")
			if err := os.MkdirAll(at, 0o755); err != nil {
				t.Fatal(err)
			}
			write(t, filepath.Join(at, strconv.Itoa(i)), "x")
		}
		dirs = append(dirs, dir)
	}
	return dirs
}

// Of a deep tree in many layers only some directories are open at a time.
func TestFewDescriptors(t *testing.T) {
	const layers, depth = 8, 120
	dirs := deepLayers(t, layers, depth)
	s, err := openStack(dirs, newRoom())
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	top, err := s.top()
	if err != nil {
		t.Fatal(err)
	}
	most, files := 0, 0
	var down func(m *merged)
	down = func(m *merged) {
		nodes, took, err := m.list()
		if err != nil {
			t.Fatal(err)
		}
		defer s.room.give(took)
		for _, n := range nodes {
			if !n.isDir() {
				files++
				continue
			}
			sub, err := n.enter()
			if err != nil {
				t.Fatal(err)
			}
			most = max(most, s.open)
			down(sub)
			sub.close()
		}
		for _, n := range nodes { // again, where it rested meanwhile
			if _, err := n.xattrs(); err != nil {
				t.Fatal(err)
			}
		}
	}
	down(top)
	top.close()
	if files != layers*depth || most > maxOpen+2*layers || s.open != 0 || s.room.left != maxRoom {
		t.Errorf("%d files; %d open at most, %d now; room %d", files, most, s.open, s.room.left)
	}
}

// What rests meanwhile is copied and compared as well.
func TestDeepCopyAndChanges(t *testing.T) {
	const layers, depth = 4, 100
	dirs := deepLayers(t, layers, depth)
	to := t.TempDir()
	if err := CopyLayers(t.Context(), dirs, filepath.Join(dirs[layers-1], FilesDir), to); err != nil {
		t.Fatal(err)
	}
	bottom := filepath.Join(to, strings.Repeat("d/", depth))
	for i := range layers {
		if read(t, filepath.Join(bottom, strconv.Itoa(i))) != "x" {
			t.Errorf("no file of layer %d", i)
		}
	}
	changes := func() (names []string) {
		t.Helper()
		var b bytes.Buffer
		w := NewWriter(&b)
		if err := errors.Join(w.Compared(t.Context(), to, filepath.Join(dirs[layers-1], FilesDir), dirs), w.Close()); err != nil {
			t.Fatal(err)
		}
		if w.room.left != maxRoom {
			t.Errorf("room %d is left", w.room.left)
		}
		for r := tar.NewReader(&b); ; {
			h, err := r.Next()
			if errors.Is(err, io.EOF) {
				return names
			}
			if err != nil {
				t.Fatal(err)
			}
			names = append(names, h.Name)
		}
	}
	if got := changes(); len(got) != 0 {
		t.Errorf("changed without a change: %q", got)
	}
	write(t, filepath.Join(bottom, "0"), "y")
	if got := changes(); len(got) < 1 || got[len(got)-1] != strings.Repeat("d/", depth)+"0" || len(got) > depth+1 {
		t.Errorf("changed: %d, %.20q", len(got), got)
	}
}

// A container that makes more names than there is room for gets an error, and what
// the names took is given back on the way.
func TestRoom(t *testing.T) {
	dir, top := t.TempDir(), t.TempDir()
	for i := range 20 {
		name := filepath.Join(dir, strconv.Itoa(i))
		write(t, name, "")
		if err := os.Link(name, name+"-link"); err != nil {
			t.Fatal(err)
		}
	}
	const perName, perLink = 2 + len("-link") + nameCost, 2 + nameCost
	for _, tc := range []struct {
		room int
		fits bool
	}{{maxRoom, true}, {40*perName + 20*perLink, true}, {40 * nameCost, false}, {41 * perName, false}, {0, false}} {
		for name, walk := range map[string]func(*Writer) error{
			"upper":    func(w *Writer) error { return w.Upper(t.Context(), dir, top) },
			"compared": func(w *Writer) error { return w.Compared(t.Context(), dir, top, nil) },
		} {
			w := NewWriter(io.Discard)
			w.room = &room{tc.room}
			err := walk(w)
			if tc.fits != (err == nil) || err != nil && !errors.Is(err, ErrInvalid) {
				t.Errorf("%s, room %d: %v", name, tc.room, err)
			}
		}
	}
	m := t.TempDir()
	if err := os.Rename(dir, filepath.Join(m, FilesDir)); err != nil {
		t.Fatal(err)
	}
	s, err := openStack([]string{m}, &room{30 * nodeCost})
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	root, err := s.top()
	if err != nil {
		t.Fatal(err)
	}
	defer root.close()
	if _, _, err := root.list(); !errors.Is(err, ErrInvalid) {
		t.Errorf("a layer of many names: %v", err)
	}
}

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}
