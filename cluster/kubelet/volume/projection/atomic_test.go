package projection

import (
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/coracle-project/coracle/cluster/kubelet/internal/volumetest"
)

func TestWriteAtomic(t *testing.T) {
	dir := t.TempDir()
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	// What a process that was killed at any instruction may have left.
	for _, step := range []error{
		root.Mkdir("..2020_01_01_00_00_00.1", 0o700), root.WriteFile("..2020_01_01_00_00_00.1/secret", []byte("old"), 0o600),
		root.Symlink("..2020_01_01_00_00_00.1", newDataLink), root.Symlink(dataLink+"/gone", "gone"),
	} {
		if step != nil {
			t.Fatal(step)
		}
	}
	owned := 0
	own := func() error { owned++; return nil }
	version := func() string {
		link, err := root.Readlink(dataLink)
		if err != nil {
			t.Fatal(err)
		}
		return link
	}
	last := ""
	for _, step := range []struct {
		name    string
		files   map[string]string
		changed bool
	}{
		{"first", map[string]string{"a": "1", "b/c": "2", "b/d/e": "3"}, true},
		{"nothing new", map[string]string{"a": "1", "b/c": "2", "b/d/e": "3"}, false},
		{"same length, other content", map[string]string{"a": "2", "b/c": "2", "b/d/e": "3"}, true},
		{"one gone", map[string]string{"a": "2", "b/c": "2"}, true},
		{"directory becomes file", map[string]string{"a": "2", "b": "x"}, true},
		{"one more", map[string]string{"a": "2", "b": "x", "f/g": ""}, true},
		{"empty", map[string]string{}, true},
		{"still empty", map[string]string{}, false},
	} {
		files := map[string]file{}
		for name, data := range step.files {
			files[name] = file{data: []byte(data), mode: 0o640}
		}
		owned = 0
		changed, err := writeAtomic(root, files, own)
		if err != nil || changed != step.changed || (owned == 1) != changed {
			t.Fatalf("%s: changed %v (owned %d times), %v", step.name, changed, owned, err)
		}
		if got := volumetest.Read(t, dir); !maps.Equal(got, step.files) {
			t.Errorf("%s: the volume shows %v, want %v", step.name, got, step.files)
		}
		if (version() != last) != changed {
			t.Errorf("%s: version was %q, is %q", step.name, last, version())
		}
		last = version()
		entries, err := fs.ReadDir(root.FS(), ".")
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			if n := e.Name(); strings.HasPrefix(n, "..") && n != dataLink && n != last {
				t.Errorf("%s: left %s behind", step.name, n)
			}
		}
		for name := range step.files {
			if info, err := root.Stat(name); err != nil || info.Mode().Perm() != 0o640 {
				t.Errorf("%s: %s: %v %v", step.name, name, info.Mode(), err)
			}
		}
	}
}

func TestWriteAtomicKeepsTheOldVersionWhenOwningFails(t *testing.T) {
	dir := t.TempDir()
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	if _, err := writeAtomic(root, map[string]file{"a": {data: []byte("1"), mode: 0o600}}, func() error { return nil }); err != nil {
		t.Fatal(err)
	}
	before, _ := fs.ReadDir(root.FS(), ".")
	_, err = writeAtomic(root, map[string]file{"a": {data: []byte("2"), mode: 0o600}}, func() error { return fs.ErrPermission })
	if err == nil {
		t.Fatal("no error")
	}
	after, _ := fs.ReadDir(root.FS(), ".")
	if got := volumetest.Read(t, dir); got["a"] != "1" || len(before) != len(after) {
		t.Errorf("the volume shows %v; before %v, after %v", got, before, after)
	}
}

func TestWriteAtomicRefusesNames(t *testing.T) {
	root, err := os.OpenRoot(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	for _, name := range []string{
		"", "/etc/passwd", "..", "../x", "a/../../x", "..data", "..2020", ".", "a/..", strings.Repeat("n", 256),
		strings.Repeat("n/", 2100),
	} {
		_, err := writeAtomic(root, map[string]file{name: {mode: 0o600}}, func() error { return nil })
		if err == nil || !strings.HasPrefix(err.Error(), "invalid path: ") {
			t.Errorf("%.20q: %v", name, err)
		}
	}
	entries, _ := fs.ReadDir(root.FS(), ".")
	if len(entries) > 0 {
		t.Error("something was written:", slices.Collect(func(yield func(string) bool) { yield(entries[0].Name()) }))
	}
}
