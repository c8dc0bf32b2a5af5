package unpack

import (
	"archive/tar"
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"
)

// rebuilt unpacks an archive with a recipe, and makes it again.
func rebuilt(t testing.TB, data []byte, markers Markers) (dir string, recipe, again []byte, err error) {
	t.Helper()
	dir = t.TempDir()
	var r, out bytes.Buffer
	if err := Layer(t.Context(), bytes.NewReader(data), Target{Dir: dir, Markers: markers, Recipe: &r}, Limits{}); err != nil {
		t.Fatal(err)
	}
	recipe = bytes.Clone(r.Bytes())
	err = Rebuild(t.Context(), &r, dir, &out)
	return dir, recipe, out.Bytes(), err
}

func TestRebuild(t *testing.T) {
	noise := make([]byte, 3<<20)
	for i := range noise {
		noise[i] = byte(rand.Uint32())
	}
	pax := file(strings.Repeat("long/", 30)+"name", "x")
	pax.PAXRecords = map[string]string{"SCHILY.xattr.user.a": "b", "comment": "kept"}
	plain := archive(t, dir("d"), file("d/a", "hello"), hardlink("d/b", "d/a"), symlink("l", "d/a"), pax, file("empty", ""),
		file("noise", string(noise)), file(".wh.gone", "with content"), file("d/.wh..wh..opq", ""), file("zeros", strings.Repeat("\x00", 1<<20)))
	for name, data := range map[string][]byte{
		"all kinds":          plain,
		"bytes after it":     append(bytes.Clone(plain), noise...),
		"without an end":     plain[:len(plain)-1024],
		"nothing":            {},
		"through links":      archive(t, dir("d"), symlink("l", "d"), file("l/f", "through the link")),
		"replaced by a link": archive(t, symlink("s", "x"), file("s", "now a file")),
		"gnu sparse":         sparseArchive(t),
	} {
		for _, markers := range []Markers{OverlayMarkers, FileMarkers} {
			_, recipe, again, err := rebuilt(t, data, markers)
			if err != nil || !bytes.Equal(again, data) {
				t.Errorf("%s: %d bytes became %d, %v", name, len(data), len(again), err)
			}
			if size, err := RebuiltSize(t.Context(), bytes.NewReader(recipe)); err != nil || size != int64(len(data)) {
				t.Errorf("%s: size %d instead of %d, %v", name, size, len(data), err)
			}
			if name == "all kinds" && len(recipe) > 2000 {
				t.Errorf("recipe takes %d bytes", len(recipe))
			}
		}
	}
}

// sparseArchive is an archive of a file with a hole, as GNU tar -S writes it (PAX 1.0).
func sparseArchive(t testing.TB) []byte {
	t.Helper()
	const sparseMap = "1\n8192\n4\n" // four bytes at 8192
	body := sparseMap + strings.Repeat("\x00", 512-len(sparseMap)) + "data"
	i := file("GNUSparseFile.0/sparse", body)
	i.Format = tar.FormatPAX
	// archive/tar refuses to write these keys: put others of the same length, and change them.
	i.PAXRecords = map[string]string{
		"GNV.sparse.major": "1", "GNV.sparse.minor": "0", "GNV.sparse.name": "sparse",
		"GNV.sparse.realsize": "8196",
	}
	return bytes.ReplaceAll(archive(t, i), []byte("GNV.sparse"), []byte("GNU.sparse"))
}

func TestSparseFilesAreUnpacked(t *testing.T) {
	root, err := unpackInto(t, Limits{}, sparseArchive(t))
	must(t, err)
	data, err := os.ReadFile(filepath.Join(root, "sparse"))
	must(t, err)
	if string(data) != strings.Repeat("\x00", 8192)+"data" {
		t.Errorf("%d bytes", len(data))
	}
}

func TestRebuildOfReplacedFiles(t *testing.T) {
	for name, data := range map[string][]byte{
		"file": archive(t, file("f", "first"), file("f", "second")),
		// The name would lead to another file now.
		"link on the way":   archive(t, dir("a"), dir("b"), symlink("l", "a"), file("l/f", "x"), file("b/f", "y"), symlink("l", "b")),
		"directory of some": archive(t, file("d/f", "x"), symlink("d", "elsewhere")),
	} {
		if _, _, _, err := rebuilt(t, data, OverlayMarkers); !errors.Is(err, ErrNoRecipe) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Regression: a layer whose recipe is large, which a small blob can have, filled the disk.
func TestRecipeLeavesDiskFree(t *testing.T) {
	noise := make([]byte, checkFree+1<<20)
	for i := 0; i < len(noise); i += 8 {
		binary.LittleEndian.PutUint64(noise[i:], rand.Uint64())
	}
	err := Layer(t.Context(), bytes.NewReader(append(archive(t, file("f", "x")), noise...)), Target{Dir: t.TempDir(), Recipe: io.Discard},
		Limits{MinFree: 1 << 60})
	if !errors.Is(err, unix.ENOSPC) || errors.Is(err, ErrInvalid) {
		t.Errorf("%v", err)
	}
}

func TestRebuildOfDamagedLayers(t *testing.T) {
	data := archive(t, dir("d"), file("d/f", "content"))
	dir, recipe, _, err := rebuilt(t, data, OverlayMarkers)
	must(t, err)
	f := filepath.Join(dir, "d", "f")
	for name, damage := range map[string]func() error{
		"longer":    func() error { return os.WriteFile(f, []byte("content and more"), 0o600) },
		"shorter":   func() error { return os.Truncate(f, 3) },
		"missing":   func() error { return os.Remove(f) },
		"link out":  func() error { return os.Symlink("/etc/passwd", f) },
		"a fifo":    func() error { return errors.Join(os.Remove(f), unix.Mkfifo(f, 0o600)) },
		"no parent": func() error { return os.RemoveAll(filepath.Dir(f)) },
	} {
		_ = os.MkdirAll(filepath.Dir(f), 0o755)
		_ = os.Remove(f)
		if name != "link out" {
			must(t, os.WriteFile(f, []byte("content"), 0o600))
		}
		must(t, damage())
		if err := Rebuild(t.Context(), bytes.NewReader(recipe), dir, io.Discard); !errors.Is(err, ErrDamaged) ||
			!strings.Contains(err.Error(), "d/f") {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, bad := range [][]byte{
		nil, []byte("junk"), recipe[:len(recipe)/2], compressed(t, []byte("otherone")),
		compressed(t, []byte(recipeMagic+"\x07")), compressed(t, []byte(recipeMagic)),
	} {
		if size, err := RebuiltSize(t.Context(), bytes.NewReader(bad)); !errors.Is(err, ErrDamaged) {
			t.Errorf("size of recipe %q: %d, %v", bad, size, err)
		}
		if err := Rebuild(t.Context(), bytes.NewReader(bad), dir, io.Discard); !errors.Is(err, ErrDamaged) {
			t.Errorf("recipe %q: %v", bad, err)
		}
	}
}

// The size of an archive is known without its files. Sizes that add up to more than fits are
// damage.
func TestSizeOfRecipe(t *testing.T) {
	file := append([]byte("\x01\x01f"), binary.AppendUvarint(nil, 1<<62)...)
	one := append(append([]byte(recipeMagic), file...), recordEnd)
	if size, err := RebuiltSize(t.Context(), bytes.NewReader(compressed(t, one))); err != nil || size != 1<<62 {
		t.Errorf("one file: %d, %v", size, err)
	}
	two := append(append([]byte(recipeMagic), append(file, file...)...), recordEnd)
	if size, err := RebuiltSize(t.Context(), bytes.NewReader(compressed(t, two))); !errors.Is(err, ErrDamaged) {
		t.Errorf("two files: %d, %v", size, err)
	}
	useless := append([]byte(recipeMagic), recordUseless)
	if size, err := RebuiltSize(t.Context(), bytes.NewReader(compressed(t, useless))); !errors.Is(err, ErrNoRecipe) {
		t.Errorf("a recipe that cannot be followed: %d, %v", size, err)
	}
}

func compressed(t testing.TB, data []byte) []byte {
	t.Helper()
	z, err := zstd.NewWriter(nil)
	must(t, err)
	return z.EncodeAll(data, nil)
}

func FuzzRebuild(f *testing.F) {
	f.Add([]byte("\x00\x02ab\x01\x01f\x04\x02"))
	f.Add([]byte("\x01\x09../secret\x04\x02"))
	f.Add([]byte("\x00\xff\xff\xff\xff\x0f"))
	f.Fuzz(func(t *testing.T, records []byte) {
		top := t.TempDir()
		must(t, os.WriteFile(filepath.Join(top, "secret"), []byte("outs"), 0o600))
		must(t, os.Mkdir(filepath.Join(top, "fs"), 0o700))
		must(t, os.WriteFile(filepath.Join(top, "fs", "f"), []byte("body"), 0o600))
		var out bytes.Buffer
		err := Rebuild(t.Context(), bytes.NewReader(compressed(t, append([]byte(recipeMagic), records...))), filepath.Join(top, "fs"), &out)
		if err != nil && !errors.Is(err, ErrDamaged) && !errors.Is(err, ErrNoRecipe) && !errors.Is(err, unix.EINVAL) &&
			!errors.Is(err, unix.ENAMETOOLONG) && !errors.Is(err, unix.EISDIR) {
			t.Errorf("error %v", err)
		}
		if err == nil && !bytes.Contains(records, []byte("outs")) && bytes.Contains(out.Bytes(), []byte("outs")) {
			t.Error("it read outside of the layer")
		}
	})
}
