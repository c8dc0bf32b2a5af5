package toc

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/containerd/stargz-snapshotter/estargz"
	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/image/unpack"
)

// pack makes an estargz blob of an archive.
func pack(t testing.TB, headers []*tar.Header, content string) (*bytes.Reader, digest.Digest) {
	t.Helper()
	var plain bytes.Buffer
	w := tar.NewWriter(&plain)
	for _, h := range headers {
		full := h.Typeflag == tar.TypeReg && !strings.Contains(h.Name, ".wh.")
		if full {
			h.Size = int64(len(content))
		}
		h.Format = tar.FormatPAX
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if full {
			if _, err := w.Write([]byte(content)); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	b, err := estargz.Build(io.NewSectionReader(bytes.NewReader(plain.Bytes()), 0, int64(plain.Len())), estargz.WithChunkSize(1000))
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	data, err := io.ReadAll(b)
	if err != nil {
		t.Fatal(err)
	}
	return bytes.NewReader(data), b.TOCDigest()
}

func reg(name string) *tar.Header { return &tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o640} }

func dir(name string) *tar.Header {
	return &tar.Header{Typeflag: tar.TypeDir, Name: name + "/", Mode: 0o750}
}

var content = strings.Repeat("0123456789abcdef", 250) // four chunks

// The tree is what unpacking makes of the same archive.
func TestTreeIsWhatUnpackingMakes(t *testing.T) {
	blob, d := pack(t, []*tar.Header{
		dir("a"), reg("a/file"),
		{Typeflag: tar.TypeLink, Name: "a/hard", Linkname: "a/file"},
		{Typeflag: tar.TypeSymlink, Name: "a/link", Linkname: "../file"},
		{Typeflag: tar.TypeFifo, Name: "a/fifo", Mode: 0o600, Uid: 5, Gid: 6},
		reg("implied/parent/file"),
		dir("both"), reg("both/in"),
		{Typeflag: tar.TypeReg, Name: ".wh.both"},
		{Typeflag: tar.TypeReg, Name: "a/.wh.gone"},
		dir("opaque"),
		{Typeflag: tar.TypeReg, Name: "opaque/.wh..wh..opq"},
		reg("opaque/new"),
		{Typeflag: tar.TypeReg, Name: "a/.wh..wh.plnk"},
	}, "")
	tree, err := Read(blob, blob.Size(), d, nil)
	if err != nil {
		t.Fatal(err)
	}
	to := t.TempDir()
	z, err := unpack.DecompressSized(t.Context(), io.NewSectionReader(blob, 0, blob.Size()), blob.Size(), unpack.Limits{}.WithDefaults())
	if err != nil {
		t.Fatal(err)
	}
	defer z.Close()
	if err := unpack.Layer(t.Context(), z, unpack.Target{Dir: to}, unpack.Limits{}); err != nil {
		t.Fatal(err)
	}
	seen := 0
	err = filepath.WalkDir(to, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(to, path)
		n := find(tree, rel)
		if n == nil {
			t.Errorf("%s is not in the tree", rel)
			return nil
		}
		seen++
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			return err
		}
		isDir := st.Mode&unix.S_IFMT == unix.S_IFDIR
		if n.Mode != st.Mode || n.UID != st.Uid || n.GID != st.Gid || !isDir && (n.Size != st.Size || uint64(n.Nlink) != uint64(st.Nlink)) {
			t.Errorf("%s: tree has %+v, unpacked is mode %o, %d:%d, %d bytes, %d links", rel, n, st.Mode, st.Uid, st.Gid, st.Size, st.Nlink)
		}
		if to, _ := os.Readlink(path); to != n.Link {
			t.Errorf("%s leads to %q, unpacked to %q", rel, n.Link, to)
		}
		_, err = unix.Lgetxattr(path, "trusted.overlay.opaque", nil)
		if _, opaque := n.Xattrs["trusted.overlay.opaque"]; opaque != (err == nil) {
			t.Errorf("%s: opaque %t, unpacked: %v", rel, opaque, err)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if names := count(tree, Root); names != seen {
		t.Errorf("the tree has %d names, the directory %d", names, seen)
	}
}

func find(t *Tree, path string) *Node {
	id := uint64(Root)
	for part := range strings.SplitSeq(path, "/") {
		if part == "." {
			continue
		}
		next, ok := t.Node(id).Lookup(part)
		if !ok {
			return nil
		}
		id = next
	}
	return t.Node(id)
}

func count(t *Tree, id uint64) int {
	n := 1
	for _, e := range t.Node(id).Entries {
		n += count(t, e.Node)
	}
	return n
}

func TestChunks(t *testing.T) {
	blob, d := pack(t, []*tar.Header{reg("file")}, content)
	tree, err := Read(blob, blob.Size(), d, nil)
	if err != nil {
		t.Fatal(err)
	}
	n := find(tree, "file")
	chunks, _ := tree.Chunks(n)
	if len(chunks) != 4 || n.Path() != "file" {
		t.Fatalf("%d chunks of %q", len(chunks), n.Path())
	}
	var got []byte
	for _, c := range chunks {
		packed := make([]byte, c.Next-c.Offset)
		if _, err := blob.ReadAt(packed, c.Offset); err != nil {
			t.Fatal(err)
		}
		data, err := c.Extract(packed)
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, data...)
		for _, wrong := range [][]byte{nil, packed[:len(packed)/2], bytes.Repeat([]byte{0}, len(packed))} {
			if _, err := c.Extract(wrong); err == nil {
				t.Error("a chunk of other bytes is taken")
			}
		}
		c.Digest = digest.FromString("other")
		if _, err := c.Extract(packed); err == nil {
			t.Error("a chunk with another digest is taken")
		}
	}
	if string(got) != content {
		t.Errorf("chunks are %q", got)
	}
	table, ok := tree.Table(find(tree, TableName))
	if !ok {
		t.Fatal("the table is no file")
	}
	again, err := Parse(table, tree.End(), d, nil)
	if err != nil || again.Nodes() != tree.Nodes() {
		t.Errorf("the table is parsed again as %v, %v", again, err)
	}
}

func TestReadRefuses(t *testing.T) {
	blob, d := pack(t, []*tar.Header{reg("file")}, "x")
	all := make([]byte, blob.Size())
	if _, err := blob.ReadAt(all, 0); err != nil {
		t.Fatal(err)
	}
	cut := all[:len(all)-1]
	for name, tc := range map[string]struct {
		data []byte
		toc  digest.Digest
	}{
		"another digest": {all, digest.FromString("other")},
		"no digest":      {all, ""},
		"bad digest":     {all, "sha256:x"},
		"no footer":      {cut, d},
		"nothing":        {nil, d},
		"not estargz":    {bytes.Repeat([]byte("x"), 1000), d},
	} {
		if _, err := Read(bytes.NewReader(tc.data), int64(len(tc.data)), tc.toc, nil); !errors.Is(err, ErrUnsuitable) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

const someDigest = "sha256:2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881"

// entry is one of a table.
func entry(text string) string {
	return strings.ReplaceAll(text, "DIGEST", `"chunkDigest":"`+someDigest+`"`)
}

func TestParseRefuses(t *testing.T) {
	file := `{"name":"f","type":"reg","size":4,"offset":10,DIGEST}`
	for want, entries := range map[string][]string{
		"is null":                  {`null`},
		"leaves its root":          {`{"name":"../x","type":"dir"}`},
		"empty name":               {`{"name":"","type":"dir"}`},
		"too long":                 {`{"name":"` + strings.Repeat("x", 300) + `","type":"dir"}`},
		"there twice":              {file, strings.Replace(file, "10", "20", 1)},
		"f\" is no directory":      {file, `{"name":"f/x","type":"dir"}`},
		"type \"door\"":            {`{"name":"x","type":"door"}`},
		"owner":                    {`{"name":"x","type":"dir","uid":-1}`},
		"device number":            {`{"name":"x","type":"char","devMajor":99999}`},
		"takes for a whiteout":     {`{"name":"x","type":"char"}`},
		"symbolic link":            {`{"name":"x","type":"symlink"}`},
		"time":                     {`{"name":"x","type":"dir","modtime":"yesterday"}`},
		"hard link to":             {`{"name":"x","type":"hardlink","linkName":"y"}`},
		"hard link to \"d\"":       {`{"name":"d","type":"dir"}`, `{"name":"x","type":"hardlink","linkName":"d"}`},
		"cannot be a directory":    {`{"name":".wh.d/x","type":"dir"}`},
		"whiteout of nothing":      {`{"name":".wh.","type":"reg"}`},
		"chunk of no file":         {`{"name":"x","type":"chunk","offset":1,"chunkSize":1,DIGEST}`},
		"no digest":                {`{"name":"x","type":"reg","size":1,"offset":1}`},
		"digest \"md5:x\"":         {`{"name":"x","type":"reg","size":1,"offset":1,"chunkDigest":"md5:x"}`},
		"negative":                 {`{"name":"x","type":"reg","size":-1}`},
		"up to byte 0":             {`{"name":"x","type":"reg","size":4,"offset":1,"chunkOffset":2,"chunkSize":2,DIGEST}`},
		"its chunks 2":             {`{"name":"x","type":"reg","size":4,"offset":1,"chunkSize":2,DIGEST}`, `{"name":"y","type":"dir"}`},
		"not read at once":         {`{"name":"x","type":"reg","size":99999999,"offset":1,DIGEST}`},
		"whose files end at":       {`{"name":"x","type":"reg","size":4,"offset":1000,DIGEST}`},
		"extended attribute":       {`{"name":"x","type":"dir","xattrs":{"user.` + strings.Repeat("x", 300) + `":""}}`},
		"stargz.index.json\": the": {`{"name":"stargz.index.json","type":"dir"}`},
	} {
		table := []byte(entry(`{"version":1,"entries":[` + strings.Join(entries, ",") + `]}`))
		_, err := Parse(table, 1000, digest.FromBytes(table), nil)
		if !errors.Is(err, ErrUnsuitable) || !strings.Contains(fmt.Sprint(err), want) {
			t.Errorf("want %q: %v", want, err)
		}
	}
	for text, want := range map[string]string{
		"{": "EOF", "": "EOF", "[]": "want {", "{}": "no entries", `{"entries":{}}`: "want [",
		`{"entries":[`:                "EOF",
		`{"entries":[],"entries":[]}`: "two lists", `{"entries":[]}{}`: "comes after it", `{"entries":[1]}`: "cannot unmarshal", `{"x":`: "EOF",
	} {
		if _, err := Parse([]byte(text), 1000, digest.FromString(text), nil); !errors.Is(err, ErrUnsuitable) ||
			!strings.Contains(fmt.Sprint(err), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}

func TestTooManyEntries(t *testing.T) {
	var b strings.Builder
	b.WriteString(`{"entries":[`)
	for i := range maxEntries {
		fmt.Fprintf(&b, `{"name":"%d","type":"fifo"},`, i)
	}
	b.WriteString(`{"name":"x","type":"fifo"}]}`)
	table := []byte(b.String())
	if _, err := Parse(table, 1000, digest.FromBytes(table), nil); !errors.Is(err, ErrUnsuitable) ||
		!strings.Contains(err.Error(), "more than 524288 entries") {
		t.Errorf("one too many: %v", err)
	}
}

// A table of a few megabytes can be gigabytes of entries, if they are all decoded before one is
// looked at.
func TestLittleMemory(t *testing.T) {
	table := []byte(`{"entries":[` + strings.Repeat("{},", 1<<20) + `{}]}`)
	d := digest.FromBytes(table)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err := Parse(table, 1000, d, nil)
	runtime.ReadMemStats(&after)
	if grown := after.TotalAlloc - before.TotalAlloc; !errors.Is(err, ErrUnsuitable) || grown > uint64(len(table)) {
		t.Errorf("%d bytes to refuse %d (%v)", grown, len(table), err)
	}
}

// What a tree says that it takes is what it takes, and room is asked for all of it before.
func TestBytes(t *testing.T) {
	for what, one := range map[string]string{
		"files":       `{"name":"d%[1]d/file","type":"reg","size":4,"offset":10,DIGEST}`,
		"directories": `{"name":"%[1]d/a/b/c/d/e/f/g/h/i/j/k/l","type":"dir"}`,
		"links":       `{"name":"%[1]d","type":"symlink","linkName":"` + strings.Repeat("x", 1000) + `"}`,
		"attributes":  `{"name":"%[1]d","type":"dir","xattrs":{"user.a":"eA=="}}`,
		"zones":       `{"name":"%[1]d","type":"dir","modtime":"2020-01-01T00:00:00+01:07"}`,
	} {
		var b strings.Builder
		b.WriteString(`{"entries":[{"name":"first","type":"dir"}`)
		for i := range 20000 {
			fmt.Fprintf(&b, ","+entry(one), i)
		}
		b.WriteString("]}")
		table := []byte(b.String())
		b.Reset()
		d := digest.FromBytes(table)
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		asked := int64(0)
		tree, err := Parse(table, 1000, d, func(n int64) error { asked += n; return nil })
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		runtime.GC()
		runtime.ReadMemStats(&after)
		is := int64(after.HeapAlloc) - int64(before.HeapAlloc) + int64(len(table))
		if says := tree.Bytes(); says < is*2/3 || says > 2*is || asked != says {
			t.Errorf("%s: it takes %d bytes, says %d, and has asked for %d", what, is, says, asked)
		}
		runtime.KeepAlive(table)
		runtime.KeepAlive(tree)
		if _, err := Parse(table, 1000, d, func(int64) error { return unix.ENOMEM }); !errors.Is(err, unix.ENOMEM) {
			t.Errorf("%s: without room: %v", what, err)
		}
	}
}

// Attributes that unpacking drops are not shown either.
func TestXattrs(t *testing.T) {
	table := []byte(entry(`{"entries":[{"name":"d","type":"dir","xattrs":{"user.kept":"eA==","trusted.overlay.opaque":"eQ==","user.overlay.opaque":"eQ=="}},{"name":"l","type":"symlink","linkName":"x","xattrs":{"user.x":"eA=="}}]}`))
	tree, err := Parse(table, 1000, digest.FromBytes(table), nil)
	if err != nil {
		t.Fatal(err)
	}
	if got := find(tree, "d").Xattrs; len(got) != 1 || string(got["user.kept"]) != "x" {
		t.Errorf("attributes %v", got)
	}
	if got := find(tree, "l").Xattrs; len(got) != 0 {
		t.Errorf("attributes of a link: %v", got)
	}
}

// Whatever a table says, what is made of it is a tree, with chunks that cover the files.
func FuzzParse(f *testing.F) {
	blob, d := pack(f, []*tar.Header{
		dir("a"), reg("a/file"),
		{Typeflag: tar.TypeReg, Name: ".wh.x"},
		{Typeflag: tar.TypeLink, Name: "l", Linkname: "a/file"},
	}, content)
	tree, err := Read(blob, blob.Size(), d, nil)
	if err != nil {
		f.Fatal(err)
	}
	table, _ := tree.Table(find(tree, TableName))
	f.Add(table, tree.End())
	f.Add([]byte(entry(`{"entries":[{"name":"f","type":"reg","size":4,"offset":10,DIGEST}]}`)), int64(1000))
	f.Fuzz(func(t *testing.T, table []byte, end int64) {
		tree, err := Parse(table, end, digest.FromBytes(table), nil)
		if err != nil {
			return
		}
		names := 0
		for id := uint64(Root); id < Root+uint64(tree.Nodes()); id++ {
			n := tree.Node(id)
			for i, e := range n.Entries {
				names++
				if tree.Node(e.Node) == nil || strings.ContainsAny(e.Name, "/\x00") || e.Name == ".." || e.Name == "" ||
					i > 0 && n.Entries[i-1].Name >= e.Name {
					t.Fatalf("entry %q of %d", e.Name, id)
				}
			}
			at := int64(0)
			chunks, _ := tree.Chunks(n)
			for _, c := range chunks {
				if c.At != at || c.Size <= 0 || c.Next <= c.Offset || c.Next > end {
					t.Fatalf("chunk %+v at %d", c, at)
				}
				at += c.Size
			}
			if _, is := tree.Table(n); !is && n.Mode&unix.S_IFMT == unix.S_IFREG && at != n.Size {
				t.Fatalf("file of %d bytes has chunks of %d", n.Size, at)
			}
		}
		if names < tree.Nodes()-1 {
			t.Fatalf("%d names of %d nodes", names, tree.Nodes())
		}
		if _, err := json.Marshal(tree.Node(Root)); err != nil {
			t.Fatal(err)
		}
	})
}
