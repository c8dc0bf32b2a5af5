package userdb

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/coracle-project/coracle/internal/safepath"
)

const (
	passwd = `root:x:0:0:root:/root:/bin/sh
# comment
broken
bad:x:abc:0::/:/bin/sh
app:x:1000:1001:App:/home/app:/bin/sh
other:x:1000:7::relative:/bin/sh
1234:x:55:66::/n:/bin/sh
`
	group = `root:x:0:
wheel:x:10:app,root
app:x:1001:
users:x:100:other,app
bad:x:zz:app
tape:x:26
`
)

func id(n int64) *int64 { return &n }

func TestResolve(t *testing.T) {
	for _, tc := range []struct {
		name   string
		r      Request
		uid    uint32
		gid    uint32
		groups []uint32
		home   string
	}{
		{"nothing said is root", Request{}, 0, 0, []uint32{0, 10}, "/root"},
		{"name", Request{User: "app"}, 1000, 1001, []uint32{10, 100, 1001}, "/home/app"},
		{"number in the file is its first user", Request{UID: id(1000)}, 1000, 1001, []uint32{10, 100, 1001}, "/home/app"},
		{"number not in the file", Request{UID: id(4321)}, 4321, 0, []uint32{0}, "/"},
		{"number as text", Request{User: "4321:8"}, 4321, 8, []uint32{8}, "/"},
		{"a name of digits is a name first", Request{User: "1234"}, 55, 66, []uint32{66}, "/n"},
		{"group by name", Request{User: "app:users"}, 1000, 100, []uint32{10, 100}, "/home/app"},
		{"group by number", Request{User: "app:5"}, 1000, 5, []uint32{5, 10, 100}, "/home/app"},
		{"gid wins", Request{User: "app:users", GID: id(9)}, 1000, 9, []uint32{9, 10, 100}, "/home/app"},
		{"uid drops the image's group", Request{User: "app:users", UID: id(0)}, 0, 0, []uint32{0, 10}, "/root"},
		{"groups merge", Request{User: "app", Groups: []int64{77, 10}}, 1000, 1001, []uint32{10, 77, 100, 1001}, "/home/app"},
		{"groups strict", Request{User: "app", Groups: []int64{77}, Strict: true}, 1000, 1001, []uint32{77, 1001}, "/home/app"},
		{"home that is no path", Request{User: "other"}, 1000, 7, []uint32{7, 100}, "/"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := resolve([]byte(passwd), []byte(group), tc.r)
			if err != nil {
				t.Fatal(err)
			}
			if got.UID != tc.uid || got.GID != tc.gid || !slices.Equal(got.Groups, tc.groups) || got.Home != tc.home {
				t.Errorf("got %+v", got)
			}
		})
	}
}

func TestBadRequests(t *testing.T) {
	for name, r := range map[string]Request{
		"unknown user": {User: "nobody"}, "unknown group": {User: "app:nogroup"},
		"negative uid": {UID: id(-1)}, "negative gid": {User: "app", GID: id(-1)}, "huge gid": {GID: id(1 << 40)},
		"huge uid": {UID: id(1 << 40)}, "negative group": {Groups: []int64{-5}}, "user of a broken line": {User: "bad"},
	} {
		if got, err := resolve([]byte(passwd), []byte(group), r); !errors.Is(err, ErrUser) {
			t.Errorf("%s: got %+v, %v", name, got, err)
		}
	}
}

func TestFiles(t *testing.T) {
	outside := filepath.Join(t.TempDir(), "passwd")
	if err := os.WriteFile(outside, []byte("app:x:666:666::/:\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name string
		make func(root string) error
		want error
	}{
		{"no /etc", func(string) error { return nil }, ErrUser},
		{"/etc is a file", func(root string) error { return os.WriteFile(filepath.Join(root, "etc"), nil, 0o644) }, ErrUser},
		{"link out of the root", func(root string) error {
			return errors.Join(os.Mkdir(filepath.Join(root, "etc"), 0o755), os.Symlink(outside, filepath.Join(root, "etc/passwd")))
		}, ErrUser},
		{"not a file", func(root string) error { return os.MkdirAll(filepath.Join(root, "etc/passwd"), 0o755) }, safepath.ErrNotRegular},
		{"too large", func(root string) error {
			return errors.Join(os.Mkdir(filepath.Join(root, "etc"), 0o755),
				os.WriteFile(filepath.Join(root, "etc/passwd"), []byte(strings.Repeat("x", maxFile+1)), 0o644))
		}, safepath.ErrTooLarge},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := t.TempDir()
			if err := tc.make(dir); err != nil {
				t.Fatal(err)
			}
			root, err := safepath.Open(dir)
			if err != nil {
				t.Fatal(err)
			}
			defer root.Close()
			if got, err := Resolve(root, Request{User: "app"}); !errors.Is(err, tc.want) {
				t.Errorf("got %+v, %v", got, err)
			}
			if tc.want == ErrUser {
				if got, err := Resolve(root, Request{}); err != nil || got.UID != 0 {
					t.Errorf("root: %+v, %v", got, err)
				}
			}
		})
	}
}

func FuzzResolve(f *testing.F) {
	f.Add([]byte(passwd), []byte(group), "app:users")
	f.Add([]byte("a:b:1:2"), []byte("a:b:1:,,"), "a")
	f.Add([]byte(":::::\n\n:"), []byte{0xff}, ":")
	f.Fuzz(func(t *testing.T, p, g []byte, user string) {
		got, err := resolve(p, g, Request{User: user})
		if err != nil {
			return
		}
		if got.UID > maxID || got.GID > maxID || !slices.IsSorted(got.Groups) || !slices.Contains(got.Groups, got.GID) || got.Home == "" {
			t.Errorf("user %q is %+v", user, got)
		}
	})
}
