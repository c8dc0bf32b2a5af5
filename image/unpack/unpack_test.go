package unpack

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/coracle-project/coracle/internal/safepath"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) {
	if os.Geteuid() != 0 {
		fmt.Fprintln(os.Stderr, "these tests make devices and trusted.* attributes: run them as root")
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// item is one entry of a test archive.
type item struct {
	tar.Header
	body string
}

func file(name, body string) item {
	return item{tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644}, body}
}

func dir(name string) item {
	return item{Header: tar.Header{Typeflag: tar.TypeDir, Name: name, Mode: 0o755}}
}

func symlink(name, to string) item {
	return item{Header: tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: to}}
}

func hardlink(name, to string) item {
	return item{Header: tar.Header{Typeflag: tar.TypeLink, Name: name, Linkname: to}}
}

func archive(t testing.TB, items ...item) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, i := range items {
		h := i.Header
		h.Size = int64(len(i.body))
		if h.ModTime.IsZero() && h.Typeflag != tar.TypeXGlobalHeader {
			h.ModTime = time.Unix(1e9, 0)
		}
		must(t, w.WriteHeader(&h))
		_, err := w.Write([]byte(i.body))
		must(t, err)
	}
	must(t, w.Close())
	return b.Bytes()
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// unpackInto unpacks into a directory next to which lies a secret that must not change.
func unpackInto(t testing.TB, lim Limits, data []byte) (string, error) {
	t.Helper()
	top := t.TempDir()
	secret := filepath.Join(top, "secret")
	must(t, os.WriteFile(secret, []byte("outside"), 0o600))
	root := filepath.Join(top, "fs")
	must(t, os.Mkdir(root, 0o700))
	var recipe, again bytes.Buffer
	err := Layer(t.Context(), bytes.NewReader(data), Target{Dir: root, Recipe: &recipe}, lim)
	if err == nil {
		switch err := Rebuild(t.Context(), &recipe, root, &again); {
		case errors.Is(err, ErrNoRecipe):
		case err != nil || !bytes.Equal(again.Bytes(), data):
			t.Errorf("the archive of %d bytes is made again with %d, %v", len(data), again.Len(), err)
		}
	}
	left, rerr := os.ReadDir(top)
	must(t, rerr)
	if got, _ := os.ReadFile(secret); string(got) != "outside" || len(left) != 2 {
		t.Fatalf("the layer wrote outside: secret %q, %v", got, left)
	}
	if st, err := os.Stat(secret); err != nil || st.Sys().(*syscall.Stat_t).Nlink != 1 {
		t.Fatalf("the layer linked the file outside: %v", err)
	}
	return root, err
}

// listing describes a tree, one line per entry.
func listing(t testing.TB, root string) []string {
	t.Helper()
	var lines []string
	must(t, filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil || p == root {
			return err
		}
		name := strings.TrimPrefix(p, root+"/")
		info, err := d.Info()
		if err != nil {
			return err
		}
		switch {
		case info.Mode()&fs.ModeSymlink != 0:
			to, err := os.Readlink(p)
			if err != nil {
				return err
			}
			name += " -> " + to
		case info.Mode()&fs.ModeCharDevice != 0 && info.Sys().(*syscall.Stat_t).Rdev == 0:
			name += " whiteout"
		case info.IsDir():
			name += "/"
			buf := make([]byte, 8)
			if n, err := unix.Lgetxattr(p, opaqueXattr, buf); err == nil {
				name += " opaque=" + string(buf[:n])
			}
		case info.Mode().IsRegular():
			data, err := os.ReadFile(p)
			if err != nil {
				return err
			}
			name += " " + string(data)
		default:
			name += " " + info.Mode().Type().String()
		}
		lines = append(lines, name)
		return nil
	}))
	return lines
}

func TestLayers(t *testing.T) {
	for name, c := range map[string]struct {
		in   []item
		want []string
	}{
		"empty":                    {nil, nil},
		"files and directories":    {[]item{dir("a/"), file("a/f", "1"), file("./b", "2")}, []string{"a/", "a/f 1", "b 2"}},
		"leading slash is dropped": {[]item{file("/etc/passwd", "x")}, []string{"etc/", "etc/passwd x"}},
		"dots inside":              {[]item{dir("a"), file("a/../b", "x")}, []string{"a/", "b x"}},
		"implicit parents":         {[]item{file("a/b/c", "x")}, []string{"a/", "a/b/", "a/b/c x"}},
		"symlinks keep targets":    {[]item{symlink("a", "/etc/../x"), symlink("b", "../../y")}, []string{"a -> /etc/../x", "b -> ../../y"}},
		"relative link as parent": {
			[]item{dir("usr/lib"), symlink("lib", "usr/lib"), file("lib/x", "1")},
			[]string{"lib -> usr/lib", "usr/", "usr/lib/", "usr/lib/x 1"},
		},
		"hard link":               {[]item{file("a", "x"), hardlink("d/b", "a"), hardlink("c", "/d/b")}, []string{"a x", "c x", "d/", "d/b x"}},
		"hard link to a symlink":  {[]item{symlink("a", "/etc/passwd"), hardlink("b", "a")}, []string{"a -> /etc/passwd", "b -> /etc/passwd"}},
		"later file wins":         {[]item{file("a", "1"), file("a", "2")}, []string{"a 2"}},
		"file replaces directory": {[]item{file("a/b", "1"), file("a", "2")}, []string{"a 2"}},
		"directory replaces file": {[]item{file("a", "1"), dir("a"), file("a/b", "2")}, []string{"a/", "a/b 2"}},
		"directory twice":         {[]item{dir("a"), file("a/b", "1"), dir("a")}, []string{"a/", "a/b 1"}},
		"dir replaces link":       {[]item{symlink("a", "/etc"), dir("a"), file("a/b", "1")}, []string{"a/", "a/b 1"}},
		"link replaces dir":       {[]item{file("a/b", "1"), symlink("a", "/etc")}, []string{"a -> /etc"}},
		"file replaces link":      {[]item{symlink("a", "../secret"), file("a", "1")}, []string{"a 1"}},
		"hard link replaces":      {[]item{file("a", "1"), file("b", "2"), hardlink("b", "a")}, []string{"a 1", "b 1"}},
		"fifo":                    {[]item{{Header: tar.Header{Typeflag: tar.TypeFifo, Name: "p", Mode: 0o600}}}, []string{"p p---------"}},
		"devices": {[]item{
			{Header: tar.Header{Typeflag: tar.TypeChar, Name: "c", Devmajor: 1, Devminor: 3}},
			{Header: tar.Header{Typeflag: tar.TypeBlock, Name: "d", Devmajor: 7}},
		}, []string{"c Dc---------", "d D---------"}},
		"global header": {[]item{
			{Header: tar.Header{Typeflag: tar.TypeXGlobalHeader, PAXRecords: map[string]string{"comment": "x"}}},
			file("a", "1"),
		}, []string{"a 1"}},

		"whiteout": {[]item{file(".wh.a", ""), file("d/.wh.b", "")}, []string{"a whiteout", "d/", "d/b whiteout"}},
		"opaque":   {[]item{dir("d"), file("d/.wh..wh..opq", "")}, []string{"d/ opaque=y"}},
		"opaque keeps own files": {
			[]item{file("d/a", "1"), file("d/.wh..wh..opq", ""), file("d/b", "2")},
			[]string{"d/ opaque=y", "d/a 1", "d/b 2"},
		},
		"opaque without directory": {[]item{file("d/.wh..wh..opq", "")}, []string{"d/ opaque=y"}},
		"whiteout then file":       {[]item{file(".wh.a", ""), file("a", "1")}, []string{"a 1"}},
		"file then whiteout":       {[]item{file("a", "1"), file(".wh.a", "")}, []string{"a 1"}},
		"whiteout then directory":  {[]item{file(".wh.a", ""), dir("a"), file("a/b", "1")}, []string{"a/ opaque=y", "a/b 1"}},
		"directory then whiteout":  {[]item{file("a/b", "1"), file(".wh.a", "")}, []string{"a/ opaque=y", "a/b 1"}},
		"whiteout of a parent":     {[]item{file(".wh.a", ""), file("a/b/c", "1")}, []string{"a/ opaque=y", "a/b/", "a/b/c 1"}},
		"whiteout of an upper parent": {
			[]item{file("a/.wh.b", ""), file("a/b/c/d", "1")},
			[]string{"a/", "a/b/ opaque=y", "a/b/c/", "a/b/c/d 1"},
		},
		"opaque on a whiteout": {[]item{file(".wh.a", ""), file("a/.wh..wh..opq", "")}, []string{"a/ opaque=y"}},
		"whiteout twice":       {[]item{file(".wh.a", ""), file(".wh.a", "")}, []string{"a whiteout"}},
		"aufs bookkeeping": {
			[]item{dir(".wh..wh.plnk"), file(".wh..wh.plnk/1.2", "x"), file(".wh..wh.aufs", ""), file("a", "1")},
			[]string{"a 1"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			root, err := unpackInto(t, Limits{}, archive(t, c.in...))
			must(t, err)
			if got := listing(t, root); !slices.Equal(got, c.want) {
				t.Errorf("got  %q\nwant %q", got, c.want)
			}
		})
	}
}

// Regression: on a file system without user.* attributes, a layer with one on its root was refused.
func TestUserAttributesThatAreNotSupported(t *testing.T) {
	root := t.TempDir()
	must(t, unix.Mount("ramfs", root, "ramfs", 0, ""))
	defer func() { must(t, unix.Unmount(root, unix.MNT_DETACH)) }()
	if err := unix.Setxattr(root, "user.a", []byte("b"), 0); !errors.Is(err, unix.ENOTSUP) {
		t.Fatalf("control: ramfs has user.* attributes: %v", err)
	}
	items := []item{dir("./"), dir("d"), file("f", "x")}
	for i := range items {
		items[i].PAXRecords = map[string]string{"SCHILY.xattr.user.a": "b"}
	}
	must(t, Layer(t.Context(), bytes.NewReader(archive(t, items...)), Target{Dir: root}, Limits{}))
	if got := strings.Join(listing(t, root), ", "); !strings.Contains(got, "f") {
		t.Errorf("unpacked: %s", got)
	}
}

func TestRefusals(t *testing.T) {
	xattr := func(n int, size int) item {
		i := file("x", "1")
		i.PAXRecords = map[string]string{}
		for k := range n {
			i.PAXRecords[fmt.Sprint(xattrPrefix, "user.", k)] = strings.Repeat("v", size)
		}
		return i
	}
	for name, c := range map[string]struct {
		in   []item
		want error
		text string
	}{
		"dot dot":                  {[]item{file("../secret", "x")}, safepath.ErrEscapes, `"../secret"`},
		"dot dot inside":           {[]item{file("a/../../secret", "x")}, safepath.ErrEscapes, "secret"},
		"dot dot after slash":      {[]item{file("/../secret", "x")}, safepath.ErrEscapes, "secret"},
		"directory dot dot":        {[]item{dir("..")}, safepath.ErrEscapes, ".."},
		"through an absolute link": {[]item{symlink("l", "/tmp"), file("l/evil", "x")}, safepath.ErrEscapes, `"l/evil"`},
		"through a link upwards":   {[]item{symlink("l", ".."), file("l/secret", "x")}, safepath.ErrEscapes, "l/secret"},
		"through two links": {
			[]item{symlink("a", "b"), symlink("b", "../.."), file("a/x/secret", "x")},
			safepath.ErrEscapes,
			"secret",
		},
		"through a dangling link":     {[]item{symlink("l", "none"), file("l/x", "x")}, ErrInvalid, "l/x"},
		"through a link loop":         {[]item{symlink("l", "l"), file("l/x", "x")}, unix.ELOOP, "l/x"},
		"whiteout through a link":     {[]item{symlink("l", ".."), file("l/.wh.secret", "")}, safepath.ErrEscapes, "l/"},
		"opaque through a link":       {[]item{symlink("l", ".."), file("l/.wh..wh..opq", "")}, safepath.ErrEscapes, "l/"},
		"whiteout of dot dot":         {[]item{file("a/.wh...", "")}, ErrInvalid, "whiteout of nothing"},
		"whiteout of dot":             {[]item{file("a/.wh..", "")}, ErrInvalid, "whiteout of nothing"},
		"whiteout of nothing":         {[]item{file("a/.wh.", "")}, ErrInvalid, "whiteout of nothing"},
		"entry under a whiteout name": {[]item{file(".wh.a/b", "x")}, ErrInvalid, "cannot be a directory"},
		"hard link upwards":           {[]item{hardlink("a", "../secret")}, safepath.ErrEscapes, `"a"`},
		"hard link through a link":    {[]item{symlink("l", ".."), hardlink("a", "l/secret")}, safepath.ErrEscapes, `"a"`},
		"hard link to nothing":        {[]item{hardlink("a", "lower")}, ErrInvalid, "not in this layer"},
		"hard link to itself":         {[]item{file("a", "1"), hardlink("a", "./a")}, ErrInvalid, "itself"},
		"hard link to a directory":    {[]item{dir("d"), hardlink("a", "d")}, ErrInvalid, "directory"},
		"hard link to a whiteout":     {[]item{file(".wh.w", ""), hardlink("a", "w")}, ErrInvalid, "whiteout"},
		"hard link to the root":       {[]item{hardlink("a", "/")}, ErrInvalid, `"a"`},
		"symlink to nothing":          {[]item{symlink("a", "")}, ErrInvalid, "to nothing"},
		"root as a file":              {[]item{file(".", "x")}, ErrInvalid, "root"},
		"root as a symlink":           {[]item{symlink(".", "/etc")}, ErrInvalid, "root"},
		"file as a parent":            {[]item{file("a", "1"), file("a/b", "2")}, ErrInvalid, "a/b"},
		"unknown type":                {[]item{{Header: tar.Header{Typeflag: 'Z', Name: "z"}}}, ErrInvalid, "unknown entry type"},
		"name too long":               {[]item{file(strings.Repeat("x", 300), "")}, ErrInvalid, "xxx"},
		"too many attributes":         {[]item{xattr(maxXattrs+1, 1)}, ErrInvalid, "attributes"},
		"attribute too large":         {[]item{xattr(1, maxXattrBytes+1)}, ErrInvalid, "too large"},
		"owner out of range":          {[]item{{Header: tar.Header{Typeflag: tar.TypeDir, Name: "d", Uid: 1 << 33}}}, ErrInvalid, "owner"},
		"device number out of range": {
			[]item{{Header: tar.Header{Typeflag: tar.TypeChar, Name: "c", Devmajor: 1 << 20}}},
			ErrInvalid,
			"device",
		},
		"more bytes than allowed":      {[]item{file("a", strings.Repeat("x", 2000))}, ErrLimit, "1000 bytes"},
		"more bytes in several files":  {[]item{file("a", strings.Repeat("x", 600)), file("b", strings.Repeat("x", 600))}, ErrLimit, `"b"`},
		"more entries than allowed":    {[]item{dir("1"), dir("2"), dir("3"), dir("4"), dir("5")}, ErrLimit, "4 entries"},
		"more implicit directories":    {[]item{file("1/2/3/4/5", ""), file("6", "")}, ErrLimit, "4 entries"},
		"whiteout of a symlink parent": {[]item{symlink("l", "/"), file("l/tmp/.wh.x", "")}, safepath.ErrEscapes, "l/tmp"},
	} {
		t.Run(name, func(t *testing.T) {
			lim := Limits{}
			if errors.Is(c.want, ErrLimit) {
				lim = Limits{MaxBytes: 1000, MaxEntries: 4}
			}
			_, err := unpackInto(t, lim, archive(t, c.in...))
			if !errors.Is(err, c.want) || !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), c.text) {
				t.Errorf("error %v, want %v with %q", err, c.want, c.text)
			}
		})
	}
}

func TestAttributes(t *testing.T) {
	when := time.Date(2001, 2, 3, 4, 5, 6, 789000000, time.UTC)
	capability := "\x01\x00\x00\x02\x00\x04\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"
	in := archive(
		t,
		item{Header: tar.Header{Typeflag: tar.TypeDir, Name: "./", Mode: 0o1777, Uid: 5, Gid: 6, ModTime: when, Format: tar.FormatPAX}},
		item{Header: tar.Header{Typeflag: tar.TypeDir, Name: "d", Mode: 0o2750, Uid: 1, Gid: 2, ModTime: when, Format: tar.FormatPAX}},
		item{Header: tar.Header{
			Typeflag: tar.TypeReg, Name: "d/su", Mode: 0o6711, Uid: 3, Gid: 4, ModTime: when, Format: tar.FormatPAX,
			PAXRecords: map[string]string{
				xattrPrefix + "security.capability":    capability,
				xattrPrefix + "user.note":              "kept",
				xattrPrefix + "trusted.overlay.opaque": "y",
				xattrPrefix + "trusted.other":          "x",
				xattrPrefix + "user.overlay.opaque":    "y",
				xattrPrefix + "security.selinux":       "x",
			},
		}, body: "x"},
		item{Header: tar.Header{
			Typeflag: tar.TypeSymlink, Name: "d/l", Linkname: "/secret", Uid: 7, Gid: 8, ModTime: when,
			Format: tar.FormatPAX,
		}},
		item{Header: tar.Header{Typeflag: tar.TypeFifo, Name: "d/p", Mode: 0o666, Uid: 7, Gid: 8, ModTime: when, Format: tar.FormatPAX}},
		item{Header: tar.Header{Typeflag: tar.TypeLink, Name: "d/hard", Linkname: "d/su"}},
	)
	root, err := unpackInto(t, Limits{}, in)
	must(t, err)
	for name, want := range map[string]struct {
		mode     uint32
		uid, gid uint32
	}{
		".":    {unix.S_IFDIR | 0o1777, 5, 6},
		"d":    {unix.S_IFDIR | 0o2750, 1, 2},
		"d/su": {unix.S_IFREG | 0o6711, 3, 4},
		"d/l":  {unix.S_IFLNK | 0o777, 7, 8},
		"d/p":  {unix.S_IFIFO | 0o666, 7, 8},
	} {
		var st unix.Stat_t
		must(t, unix.Lstat(filepath.Join(root, name), &st))
		if st.Mode != want.mode || st.Uid != want.uid || st.Gid != want.gid {
			t.Errorf("%s: mode %o, owner %d:%d; want %o, %d:%d", name, st.Mode, st.Uid, st.Gid, want.mode, want.uid, want.gid)
		}
		if got := time.Unix(st.Mtim.Sec, st.Mtim.Nsec); !got.Equal(when) {
			t.Errorf("%s: time %v, want %v", name, got.UTC(), when)
		}
	}
	names := make([]byte, 1024)
	n, err := unix.Llistxattr(filepath.Join(root, "d/su"), names)
	must(t, err)
	got := strings.Split(strings.TrimRight(string(names[:n]), "\x00"), "\x00")
	slices.Sort(got)
	if want := []string{"security.capability", "user.note"}; !slices.Equal(got, want) {
		t.Errorf("attributes %q, want %q", got, want)
	}
}

func TestSparseStaysSparse(t *testing.T) {
	const size = 8 << 20
	body := make([]byte, size)
	copy(body[3<<20:], "data")
	root, err := unpackInto(t, Limits{}, archive(t, file("s", string(body))))
	must(t, err)
	var st unix.Stat_t
	must(t, unix.Lstat(filepath.Join(root, "s"), &st))
	if st.Size != size || st.Blocks*512 > 1<<20 {
		t.Errorf("size %d in %d bytes on disk", st.Size, st.Blocks*512)
	}
	if got, _ := os.ReadFile(filepath.Join(root, "s")); !bytes.Equal(got, body) {
		t.Error("content differs")
	}
}

func TestUmaskDoesNotMatter(t *testing.T) {
	old := unix.Umask(0o077)
	defer unix.Umask(old)
	root, err := unpackInto(t, Limits{}, archive(t, file("a/b/f", "x")))
	must(t, err)
	for name, want := range map[string]os.FileMode{"": 0o755, "a": 0o755, "a/b": 0o755, "a/b/f": 0o644} {
		st, err := os.Stat(filepath.Join(root, name))
		must(t, err)
		if st.Mode().Perm() != want {
			t.Errorf("%q has mode %o, want %o", name, st.Mode().Perm(), want)
		}
	}
}

func TestDamagedArchives(t *testing.T) {
	whole := archive(t, file("a", strings.Repeat("x", 5000)), file("b", "2"))
	for name, data := range map[string][]byte{
		"cut in a body":   whole[:3000],
		"cut in a header": whole[:700],
		"not an archive":  bytes.Repeat([]byte("junk"), 500),
	} {
		if _, err := unpackInto(t, Limits{}, data); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v, want ErrInvalid", name, err)
		}
	}
}

func TestFullDiskIsNotTheLayersFault(t *testing.T) {
	var dirs, deep []item
	for i := range checkFree/block + 1 {
		dirs = append(dirs, dir(fmt.Sprint("d", i)))
	}
	for i := range len(dirs)/900 + 1 {
		deep = append(deep, file(fmt.Sprint("d", i, strings.Repeat("/a", 900)), ""))
	}
	for what, in := range map[string][]byte{
		"a file":                          archive(t, file("a", strings.Repeat("x", checkFree+1))),
		"directories":                     archive(t, dirs...),
		"directories that no entry names": archive(t, deep...),
	} {
		_, err := unpackInto(t, Limits{MinFree: 1 << 60}, in)
		if !errors.Is(err, unix.ENOSPC) || errors.Is(err, ErrInvalid) {
			t.Errorf("%s: error %v, want ENOSPC and not ErrInvalid", what, err)
		}
	}
	large := tar.Header{PAXRecords: map[string]string{xattrPrefix + "user.large": strings.Repeat("x", 1<<20)}}
	if n := besides(&large); n < 1<<20 {
		t.Errorf("an attribute of a megabyte counts as %d bytes", n)
	}
}
