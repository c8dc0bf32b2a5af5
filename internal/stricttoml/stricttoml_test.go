package stricttoml

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"
)

type file struct {
	Name  string            `toml:"name"`
	Size  int               `toml:"size"`
	Items map[string]nested `toml:"items"`
}

type nested struct {
	On   bool     `toml:"on"`
	Tags []string `toml:"tags"`
}

func TestDecodeSaysWhere(t *testing.T) {
	for name, c := range map[string]struct{ data, want string }{
		"unknown key":          {"name = \"a\"\nnmae = 1", "line 2: unknown key nmae"},
		"unknown key below":    {"[items.\"a.b\"]\non = true\noff = 1", `line 3: unknown key items."a.b".off`},
		"several unknown keys": {"x = 1\ny = 2", "line 1: unknown key x\nline 2: unknown key y"},
		"unknown section":      {"[item]\na = 1", "unknown key item"},
		"wrong type":           {"\nsize = \"a\"", "line 2: size: has type string, not integer"},
		"no list":              {"[items.a]\ntags = 3", "line 2: items.a.tags: "},
		"key twice":            {"size = 1\nsize = 2", "line 2: "},
		"key in two cases":     {"size = 1\nSize = 2", `key size is set twice: as "Size" and as "size"`},
		"no TOML":              {"size = ", "line 1: "},
		"no UTF-8":             {"name = \"\xff\"", "line 1: "},
	} {
		t.Run(name, func(t *testing.T) {
			if err := Decode([]byte(c.data), &file{}); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want %q", err, c.want)
			}
		})
	}
}

func TestDecodeKeepsWhatIsNotSet(t *testing.T) {
	f := file{Name: "default", Size: 3}
	if err := Decode([]byte("size = 4"), &f); err != nil || f.Name != "default" || f.Size != 4 {
		t.Errorf("%+v, %v", f, err)
	}
}

func TestReadFileIsBounded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file.toml")
	for size, ok := range map[int]bool{0: true, MaxSize: true, MaxSize + 1: false} {
		if err := os.WriteFile(path, make([]byte, size), 0o600); err != nil {
			t.Fatal(err)
		}
		if data, err := ReadFile(path); (err == nil) != ok || ok && len(data) != size {
			t.Errorf("%d bytes: %d, %v", size, len(data), err)
		}
	}
	if _, err := ReadFile("/dev/zero"); err == nil {
		t.Error("a device without end is read")
	}
}

func TestKeyName(t *testing.T) {
	for want, key := range map[string][]string{
		`a.b-C_9`:             {"a", "b-C_9"},
		`"".a`:                {"", "a"},
		`host."a.b:5".x`:      {"host", "a.b:5", "x"},
		`"\"\\\u000a\u007fé"`: {"\"\\\n\x7fé"},
	} {
		if got := KeyName(key); got != want {
			t.Errorf("%q is %s, want %s", key, got, want)
		}
	}
}

// Whatever the file, nothing panics; and what is quoted is read back as it was, as key and
// as value.
func FuzzDecode(f *testing.F) {
	for _, s := range []string{
		"", "size = 1", "[items.a]\non = true", "x = 1\n[y.\"\\n\"]\nz = {a = 1}", "name = '''\n", "\"\\\u007f\xff",
		"\u2028\ufeff\ufffd",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		_ = Decode([]byte(s), &file{})
		if !utf8.ValidString(s) {
			return
		}
		var got file
		data := "name = " + Quote(s) + "\n[items." + KeyName([]string{s}) + "]\non = true"
		if err := Decode([]byte(data), &got); err != nil || got.Name != s || !got.Items[s].On {
			t.Errorf("%q as %s: %+v, %v", s, data, got, err)
		}
	})
}
