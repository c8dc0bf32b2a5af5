package integration

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/internal/testkit"
	"github.com/coracle-project/coracle/internal/testkit/ociimage"
)

// What is pulled equals, name by name, what skopeo and umoci unpack from the same image:
// kinds, modes, owners, times, contents, attributes, hard links. For all drivers.
func TestUnpackEqualsUmoci(t *testing.T) {
	pushed := everything(t)
	if err := ociimage.Push(t.Context(), testRef("everything"), pushed, ociimage.Registry{PlainHTTP: true}); err != nil {
		t.Fatal(err)
	}
	ref := testRef("everything")
	dir := t.TempDir()
	layout, theirs := filepath.Join(dir, "layout")+":all", filepath.Join(dir, "theirs")
	execute(t, "skopeo", "copy", "--src-tls-verify=false", "docker://"+ref, "oci:"+layout)
	execute(t, "umoci", "raw", "unpack", "--image", layout, theirs)
	want := describeRoot(t, theirs)
	if len(want) < 25 {
		t.Fatalf("umoci has unpacked %d names", len(want))
	}
	for _, driver := range []string{"overlay", "erofs", "native"} {
		t.Run(driver, func(t *testing.T) {
			n := newNode(t, testkit.Options{Config: "[snapshot]\ndriver = \"" + driver + "\"\n"})
			n.pull("everything")
			coracle, err := testkit.FindBin("coracle")
			if err != nil {
				t.Fatal(err)
			}
			ours := filepath.Join(t.TempDir(), "ours")
			execute(t, coracle, "image", "--address", n.Socket, "mount", ref, ours)
			defer execute(t, coracle, "image", "--address", n.Socket, "unmount", ours)
			if diff := cmp.Diff(want, describeRoot(t, ours)); diff != "" {
				t.Errorf("umoci (-) and we (+) differ: %s", diff)
			}
		})
	}
}

// A store that keeps blobs is an OCI layout that skopeo copies from.
func TestLayoutIsReadBySkopeo(t *testing.T) {
	n := newNode(t, testkit.Options{Config: "[image]\nkeep_blobs = true\n"})
	ref := n.pull("whiteout")
	to := filepath.Join(t.TempDir(), "copy")
	execute(t, "skopeo", "copy", "oci:"+filepath.Join(n.Root, "images")+":"+ref, "oci:"+to+":x")
	execute(t, "umoci", "raw", "unpack", "--image", to+":x", filepath.Join(t.TempDir(), "tree"))
}

func execute(t *testing.T, name string, args ...string) {
	t.Helper()
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
}

// everything is an image with one of each thing that a layer can have.
func everything(t *testing.T) ociimage.Built {
	t.Helper()
	at := time.Unix(1234567890, 123456789)
	file := func(name, data string) tar.Header { // the body travels in Gname
		return tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: int64(len(data)), Gname: data}
	}
	dir := func(name string, mode int64) tar.Header {
		return tar.Header{Typeflag: tar.TypeDir, Name: name, Mode: mode}
	}
	with := func(h tar.Header, change func(*tar.Header)) tar.Header {
		change(&h)
		return h
	}
	long := strings.Repeat("long-name-", 20)
	capability := "\x01\x00\x00\x02\x00\x20\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"
	lower := []tar.Header{
		dir("./", 0o755), dir("bin/", 0o755), dir("d/", 0o2755), dir("d/sub/", 0o1777), dir("gone/", 0o755), dir("opaque/", 0o750),
		dir("merged/", 0o755),
		with(file("bin/setuid", "#!"), func(h *tar.Header) { h.Mode = 0o4711 }),
		with(file("bin/capable", "x"), func(h *tar.Header) {
			h.PAXRecords = map[string]string{"SCHILY.xattr.security.capability": capability, "SCHILY.xattr.user.note": "hello"}
		}),
		with(file("d/owned", "high ids"), func(h *tar.Header) { h.Uid, h.Gid = 100000, 4000000000 }),
		{Typeflag: tar.TypeSymlink, Name: "d/abs", Linkname: "/bin/setuid", Mode: 0o777},
		{Typeflag: tar.TypeSymlink, Name: "d/dangling", Linkname: "../../../nowhere", Mode: 0o777, Uid: 7, Gid: 8},
		{Typeflag: tar.TypeLink, Name: "d/hard", Linkname: "d/owned"},
		{Typeflag: tar.TypeLink, Name: "hard2", Linkname: "d/owned"},
		{Typeflag: tar.TypeChar, Name: "d/null", Devmajor: 1, Devminor: 3, Mode: 0o666},
		{Typeflag: tar.TypeBlock, Name: "d/disk", Devmajor: 259, Devminor: 300, Mode: 0o600},
		{Typeflag: tar.TypeFifo, Name: "d/fifo", Mode: 0o640},
		dir(long+"/", 0o755), file(long+"/"+long, "long"), file("ünïcödé", "é"), file("d/space and\ttab", "s"),
		file("empty", ""), file("zeros", strings.Repeat("\x00", 300_000)), file("gone/x", "x"), file("deleted", "x"), file("opaque/hidden", "x"),
		file("merged/kept", "kept"), file("merged/deleted", "x"), file("replaced-by-dir", "x"), dir("replaced-by-file/", 0o755),
		file("replaced-by-file/x", "x"),
	}
	upper := []tar.Header{
		dir("merged/", 0o711), dir("opaque/", 0o755),
		file(".wh.gone", ""), file(".wh.deleted", ""), file("merged/.wh.deleted", ""), file("merged/new", "new"),
		file("opaque/.wh..wh..opq", ""), file("opaque/new", "new"),
		dir("replaced-by-dir/", 0o755), file("replaced-by-dir/x", "in it"), file("replaced-by-file", "a file now"),
	}
	// A container's root directory is one that is made for it, and has to look like the last
	// layer's.
	root := []tar.Header{with(dir("./", 0o1751), func(h *tar.Header) {
		h.Uid, h.Gid, h.PAXRecords = 7, 8, map[string]string{"SCHILY.xattr.user.note": "root"}
	})}
	var layers [][]byte
	for _, entries := range [][]tar.Header{lower, upper, root} {
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		for _, h := range entries {
			body := h.Gname
			h.Gname, h.Format, h.ModTime = "", tar.FormatPAX, at
			if err := w.WriteHeader(&h); err != nil {
				t.Fatalf("%s: %v", h.Name, err)
			}
			if _, err := w.Write([]byte(body)); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		layers = append(layers, b.Bytes())
	}
	return imageOf(t, slices.Insert(layers, 2, gnuTar(t)...)...)
}

// gnuTar are layers that GNU tar has written: names longer than its own headers hold, and
// a sparse file (in PAX headers, since umoci knows no others).
func gnuTar(t *testing.T) [][]byte {
	t.Helper()
	dir := t.TempDir()
	f, err := os.Create(filepath.Join(dir, "sparse"))
	if err == nil {
		_, err = f.WriteAt([]byte("end"), 1<<20)
	}
	if err == nil {
		err = f.Close()
	}
	name := strings.Repeat("gnu-", 40)
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, name), []byte("gnu"), 0o644)
	}
	var layers [][]byte
	for _, args := range [][]string{{"--format=gnu", name}, {"--format=posix", "-S", "sparse"}} {
		var out []byte
		if err == nil {
			out, err = exec.Command("tar", append([]string{"-c", "-C", dir}, args...)...).Output()
		}
		layers = append(layers, out)
	}
	if err != nil {
		t.Fatal(err)
	}
	return layers
}

// imageOf is an image of layers given as archives.
func imageOf(t *testing.T, layers ...[]byte) ociimage.Built {
	t.Helper()
	b := ociimage.Built{Blobs: map[digest.Digest][]byte{}}
	config := ocispec.Image{Platform: ocispec.Platform{OS: "linux", Architecture: runtime.GOARCH}, RootFS: ocispec.RootFS{Type: "layers"}}
	manifest := ocispec.Manifest{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest}
	for _, l := range layers {
		var z bytes.Buffer
		w := gzip.NewWriter(&z)
		if _, err := w.Write(l); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		config.RootFS.DiffIDs = append(config.RootFS.DiffIDs, digest.FromBytes(l))
		manifest.Layers = append(manifest.Layers, b.Add(ocispec.MediaTypeImageLayerGzip, z.Bytes()))
	}
	add := func(mediaType string, v any) ocispec.Descriptor {
		data, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return b.Add(mediaType, data)
	}
	manifest.Config = add(ocispec.MediaTypeImageConfig, config)
	b.Manifest = add(ocispec.MediaTypeImageManifest, manifest)
	return b
}

// describeRoot is describe with the time of the root, which everything's last layer sets.
func describeRoot(t *testing.T, root string) map[string]string {
	t.Helper()
	tree := describe(t, root)
	info, err := os.Stat(root)
	if err != nil {
		t.Fatal(err)
	}
	tree["."] += fmt.Sprintf(", at %v", info.ModTime())
	return tree
}

// describe is a line for each name of a tree. Files with several names are told by the first
// of them. Directories that lose or gain a name after they were made have times that no one
// promises.
func describe(t *testing.T, root string) map[string]string {
	t.Helper()
	tree := map[string]string{}
	first := map[uint64]string{}
	err := filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(root, path)
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			return err
		}
		line := fmt.Sprintf("%o %d:%d", st.Mode, st.Uid, st.Gid)
		if !e.IsDir() {
			line += fmt.Sprintf(" at %d.%09d, device %d", st.Mtim.Sec, st.Mtim.Nsec, st.Rdev)
		}
		switch e.Type() {
		case 0:
			data, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			line += fmt.Sprintf(", %d bytes %s", len(data), digest.FromBytes(data).Encoded()[:12])
		case fs.ModeSymlink:
			to, err := os.Readlink(path)
			if err != nil {
				return err
			}
			line += " -> " + to
		}
		if !e.IsDir() && st.Nlink > 1 {
			if first[st.Ino] == "" {
				first[st.Ino] = rel
			}
			line += fmt.Sprintf(", %d names, first %s", st.Nlink, first[st.Ino])
		}
		attrs, err := xattrs(path)
		tree[rel] = line + attrs
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return tree
}

func xattrs(path string) (string, error) {
	buf := make([]byte, 4096)
	n, err := unix.Llistxattr(path, buf)
	if err != nil {
		return "", err
	}
	names := strings.Split(strings.TrimSuffix(string(buf[:n]), "\x00"), "\x00")
	slices.Sort(names)
	line := ""
	for _, name := range names {
		if name == "" || strings.HasPrefix(name, "trusted.overlay.") {
			continue
		}
		value := make([]byte, 4096)
		n, err := unix.Lgetxattr(path, name, value)
		if err != nil {
			return "", err
		}
		line += fmt.Sprintf(", %s=%q", name, value[:n])
	}
	return line, nil
}
