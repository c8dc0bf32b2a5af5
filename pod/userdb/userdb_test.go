package userdb

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
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

func num(n int64) *int64 { return &n }

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
		{"number in the file is its first user", Request{UID: num(1000)}, 1000, 1001, []uint32{10, 100, 1001}, "/home/app"},
		{"number not in the file", Request{UID: num(4321)}, 4321, 0, []uint32{0}, "/"},
		{"number as text", Request{User: "4321:8"}, 4321, 8, []uint32{8}, "/"},
		{"a name of digits is a number", Request{User: "1234"}, 1234, 0, []uint32{0}, "/"},
		{"group by name", Request{User: "app:users"}, 1000, 100, []uint32{10, 100}, "/home/app"},
		{"group by number", Request{User: "app:5"}, 1000, 5, []uint32{5, 10, 100}, "/home/app"},
		{"gid wins", Request{User: "app:users", GID: num(9)}, 1000, 9, []uint32{9, 10, 100}, "/home/app"},
		{"uid drops the image's group", Request{User: "app:users", UID: num(0)}, 0, 0, []uint32{0, 10}, "/root"},
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
		"negative uid": {UID: num(-1)}, "negative gid": {User: "app", GID: num(-1)}, "huge gid": {GID: num(1 << 40)},
		"huge uid": {UID: num(1 << 40)}, "negative group": {Groups: []int64{-5}}, "user of a broken line": {User: "bad"},
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
	f.Add([]byte("4294967296:x:0:0"), []byte("+1:x:0:"), "4294967296:+1")
	f.Fuzz(func(t *testing.T, p, g []byte, user string) {
		got, err := resolve(p, g, Request{User: user})
		if err != nil {
			return
		}
		if name, _, _ := strings.Cut(user, ":"); name != "" && Numeric(name) {
			if n, err := strconv.ParseInt(name, 10, 64); err != nil || int64(got.UID) != n {
				t.Errorf("number %q became user %d", name, got.UID)
			}
		}
		if got.UID > maxID || got.GID > maxID || !slices.IsSorted(got.Groups) || !slices.Contains(got.Groups, got.GID) || got.Home == "" {
			t.Errorf("user %q is %+v", user, got)
		}
	})
}

// TestNumbersAreNotNames: the kubelet verifies runAsNonRoot, and admission runAsUser, by the number
// that an image or a pod names. An image whose /etc/passwd has a user of that name must not get
// that user's number instead (CVE-2026-46680 is the case of a number that is out of range).
func TestNumbersAreNotNames(t *testing.T) {
	numbers := []string{
		"1000", "+1000", "01000", "-1", "2147483648", "4294967296", "9223372036854775807", "9223372036854775808",
		strings.Repeat("9", 400),
	}
	var p, g strings.Builder
	for _, n := range numbers {
		p.WriteString(n + ":x:0:0:root:/root:/bin/sh\n")
		g.WriteString(n + ":x:0:\n")
	}
	hostile, groups := []byte(p.String()), []byte(g.String())
	for _, n := range numbers {
		// The lookup by name wins: that is what the attack counts on.
		if u, err := userByName(hostile, n); err != nil || u.uid != 0 {
			t.Fatalf("control: user %.20q is %+v, %v", n, u, err)
		}
		requests := []Request{{User: n}, {User: n + ":" + n}, {User: "root:" + n}}
		if v, err := strconv.ParseInt(n, 10, 64); err == nil {
			requests = append(requests, Request{UID: &v}, Request{User: "root", UID: &v, GID: &v})
		}
		for i, r := range requests {
			got, err := resolve(append(hostile, "root:x:7:7::/:\n"...), groups, r)
			if err == nil && got.UID != 1000 && i != 2 || err == nil && got.GID == 0 && (i == 1 || i == 2) {
				t.Errorf("request %d for %.20q is %+v", i, n, got)
			}
			if err != nil && !errors.Is(err, ErrUser) {
				t.Errorf("request %d for %.20q: %v", i, n, err)
			}
			if long := n != "1000" && n != "+1000" && n != "01000"; long != (err != nil) {
				t.Errorf("request %d for %.20q: %+v, %v", i, n, got, err)
			}
		}
	}
}

// TestHostileDatabaseTakesLittleMemory: files of the largest size that is read, made to be
// multiplied (CVE-2026-47262).
func TestHostileDatabaseTakesLittleMemory(t *testing.T) {
	commas := "g:x:1:" + strings.Repeat(",", maxLine-100) + "\n"
	colons := "u" + strings.Repeat(":", maxLine-100) + "\n"
	fill := func(line string) []byte { return []byte(strings.Repeat(line, maxFile/len(line))) }
	user := []byte("u:x:5:5::/:\n")
	for name, tc := range map[string]struct {
		passwd, group []byte
		refused       bool
	}{
		"lists of commas":   {user, fill(commas), false},
		"lines of colons":   {append(fill(colons), user...), fill(colons), false},
		"a million lines":   {append(fill("a:b\n"), user...), fill("a:b\n"), false},
		"no line ends":      {append(user, fill("x")...), fill("x"), false},
		"in the same group": {user, fill("g:x:1:u\n"), false},
		"in all groups":     {user, manyGroups(), true},
	} {
		t.Run(name, func(t *testing.T) {
			var err error
			took := allocated(func() { _, err = resolve(tc.passwd, tc.group, Request{User: "u"}) })
			if refused := errors.Is(err, ErrUser); refused != tc.refused || !refused && err != nil {
				t.Errorf("%v", err)
			}
			most := uint64(5 * maxFile)
			if name == "in the same group" {
				most *= 4 // the fields of half a million short lines, one after the other
			}
			if took > most {
				t.Errorf("%d MiB were allocated for files of %d MiB, want at most %d", took>>20, maxFile>>20, most>>20)
			}
		})
	}
	// What the attack counts on: one such line, split, takes sixteen times its size, and so does
	// each of the others.
	if took := allocated(func() { sink = strings.Split(commas, ",") }); took < 12*maxLine {
		t.Errorf("control: a split line took %d bytes only", took)
	}
}

var sink []string

// manyGroups is a group file in which user u is in more groups than a process can be in.
func manyGroups() []byte {
	var b []byte
	for i := range maxGroups + 1 {
		b = fmt.Appendf(b, "g:x:%d:u\n", i+10)
	}
	return b
}

// allocated is how many bytes f allocates in all.
func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}
