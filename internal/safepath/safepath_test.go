package safepath

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// tree makes a root with traps, and a secret outside that nothing may reach.
func tree(t testing.TB) (root *Root, dir, secret string) {
	t.Helper()
	top := t.TempDir()
	dir = filepath.Join(top, "root")
	secret = filepath.Join(top, "secret")
	must(t, os.MkdirAll(filepath.Join(dir, "etc", "deep"), 0o755))
	must(t, os.WriteFile(secret, []byte("outside"), 0o600))
	must(t, os.WriteFile(filepath.Join(dir, "etc", "passwd"), []byte("inside"), 0o644))
	must(t, os.WriteFile(filepath.Join(dir, "secret"), []byte("inside"), 0o644))
	for link, target := range map[string]string{
		"abs":      "/etc",
		"abs-file": "/etc/passwd",
		"up":       "../..",
		"up-file":  "../secret",
		"rel":      "etc",
		"loop":     "loop",
		"dangling": "nowhere",
		"host":     top,
		"magic":    "/proc/self/root",
	} {
		must(t, os.Symlink(target, filepath.Join(dir, link)))
	}
	root, err := Open(dir)
	must(t, err)
	t.Cleanup(func() { root.Close() })
	return root, dir, secret
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestReadInRootStaysInside(t *testing.T) {
	root, _, _ := tree(t)
	for _, path := range []string{
		"etc/passwd", "/etc/passwd", "abs/passwd", "abs-file", "rel/passwd",
		"../../etc/passwd", "up/etc/passwd", "up-file", "etc/deep/../../secret",
	} {
		got, err := root.ReadFile(path, 100)
		if err != nil || string(got) != "inside" {
			t.Errorf("ReadFile(%q) = %q, %v; want what is inside", path, got, err)
		}
	}
}

func TestStrictRefusesWhatLeaves(t *testing.T) {
	root, _, _ := tree(t)
	strict := root.Strict()
	for _, path := range []string{
		"/etc/passwd", "abs/passwd", "abs-file", "../secret", "up/secret", "up-file", "host/secret", "etc/../../secret",
	} {
		if _, err := strict.ReadFile(path, 100); !errors.Is(err, ErrEscapes) {
			t.Errorf("ReadFile(%q): %v, want ErrEscapes", path, err)
		}
	}
	for _, path := range []string{"etc/passwd", "rel/passwd", "etc/deep/../passwd"} {
		if _, err := strict.ReadFile(path, 100); err != nil {
			t.Errorf("ReadFile(%q): %v", path, err)
		}
	}
}

func TestReadFileRefuses(t *testing.T) {
	root, dir, _ := tree(t)
	must(t, unix.Mkfifo(filepath.Join(dir, "fifo"), 0o600))
	must(t, unix.Mknod(filepath.Join(dir, "null"), unix.S_IFCHR|0o600, int(unix.Mkdev(1, 3))))
	for path, want := range map[string]error{
		"fifo":        ErrNotRegular,
		"null":        ErrNotRegular,
		"etc":         ErrNotRegular,
		"none":        fs.ErrNotExist,
		"dangling":    fs.ErrNotExist,
		"loop":        unix.ELOOP,
		"etc/passwd/": unix.ENOTDIR,
		"a\x00b":      unix.EINVAL,
	} {
		if _, err := root.ReadFile(path, 100); !errors.Is(err, want) {
			t.Errorf("ReadFile(%q): %v, want %v", path, err, want)
		}
	}
	if _, err := root.ReadFile("etc/passwd", 5); !errors.Is(err, ErrTooLarge) {
		t.Errorf("limit 5: %v, want ErrTooLarge", err)
	}
	if _, err := root.ReadFile("etc/passwd", 6); err != nil {
		t.Errorf("limit 6: %v", err)
	}
}

func TestMagicLinksAreNotFollowed(t *testing.T) {
	proc, err := Open("/proc/self")
	must(t, err)
	defer proc.Close()
	for _, path := range []string{"root/etc/passwd", "cwd/.", "exe", "fd/0/x"} {
		f, err := proc.OpenFile(path, unix.O_RDONLY, 0)
		if err == nil {
			f.Close()
			t.Errorf("OpenFile(%q) followed a magic link", path)
		}
	}
}

// Everything that changes acts on a link in the last component, not through it.
func TestChangesDoNotFollow(t *testing.T) {
	root, dir, secret := tree(t)
	before, err := os.Stat(secret)
	must(t, err)
	link := "out"
	must(t, os.Symlink(secret, filepath.Join(dir, link)))

	if f, err := root.OpenFile(link, unix.O_CREAT|unix.O_WRONLY|unix.O_TRUNC, 0o600); err == nil {
		f.Close()
		t.Error("OpenFile with O_CREAT followed a link")
	}
	if f, err := root.OpenFile("dangling", unix.O_CREAT|unix.O_WRONLY, 0o600); err == nil {
		f.Close()
		t.Error("OpenFile with O_CREAT created through a dangling link")
	}
	if err := root.Chmod(link, 0o777); err == nil {
		t.Error("Chmod of a link succeeded")
	}
	must(t, root.Lchown(link, 1, 1))
	must(t, root.Utimes(link, time.Unix(1, 0), time.Unix(1, 0)))
	must(t, root.Lsetxattr(link, "trusted.coracle", []byte("x")))
	if err := root.Mkdir(link, 0o755); !errors.Is(err, unix.EEXIST) {
		t.Errorf("Mkdir on a link: %v", err)
	}
	if err := root.MkdirAll("dangling/x", 0o755); err == nil {
		t.Error("MkdirAll went through a dangling link")
	}
	must(t, root.Link(link, "hard"))
	if st, err := root.Lstat("hard"); err != nil || st.Mode&unix.S_IFMT != unix.S_IFLNK {
		t.Errorf("Link followed the link: %v, %v", st.Mode, err)
	}
	must(t, root.Rename("secret", link))
	must(t, root.RemoveAll("abs"))
	must(t, root.RemoveAll("host"))
	must(t, root.Remove("up"))

	after, err := os.Stat(secret)
	must(t, err)
	if data, _ := os.ReadFile(secret); string(data) != "outside" || after.Mode() != before.Mode() ||
		!after.ModTime().Equal(before.ModTime()) || after.Sys().(*syscall.Stat_t).Uid != before.Sys().(*syscall.Stat_t).Uid {
		t.Errorf("the file outside was changed: %v, was %v", after, before)
	}
	if _, err := os.Stat(filepath.Join(dir, "etc", "passwd")); err != nil {
		t.Errorf("RemoveAll of a link removed its target: %v", err)
	}
}

func TestNamesWithoutLastComponent(t *testing.T) {
	root, _, _ := tree(t)
	for _, path := range []string{"", "/", ".", "..", "etc/..", "etc/.", "//"} {
		if err := root.RemoveAll(path); err == nil {
			t.Errorf("RemoveAll(%q) succeeded", path)
		}
		if err := root.Mkdir(path, 0o755); err == nil {
			t.Errorf("Mkdir(%q) succeeded", path)
		}
	}
	d, err := root.OpenDir("etc")
	must(t, err)
	defer d.Close()
	for _, name := range []string{"", ".", "..", "a/b", "../x", "/x", "a\x00"} {
		for op, err := range map[string]error{
			"Mkdir":   d.Mkdir(name, 0o755),
			"Remove":  d.Remove(name),
			"Symlink": d.Symlink("x", name),
			"Link":    d.Link(d, "passwd", name),
			"LinkOld": d.Link(d, name, "new"),
			"Rename":  d.Rename("passwd", d, name),
			"Chmod":   d.Chmod(name, 0),
		} {
			if !errors.Is(err, ErrEscapes) {
				t.Errorf("%s(%q): %v, want ErrEscapes", op, name, err)
			}
		}
	}
}

func TestRoundTrip(t *testing.T) {
	root, dir, _ := tree(t)
	must(t, root.MkdirAll("a/b/c", 0o755))
	d, made, err := root.EnsureDir("a/b/d/e", 0o755)
	must(t, err)
	d.Close()
	if strings.Join(made, " ") != "a/b/d a/b/d/e" {
		t.Errorf("EnsureDir made %q", made)
	}
	must(t, root.Symlink("/target", "a/link"))
	if got, err := root.Readlink("a/link"); err != nil || got != "/target" {
		t.Errorf("Readlink = %q, %v", got, err)
	}
	must(t, root.Mknod("a/dev", unix.S_IFCHR|0o600, unix.Mkdev(1, 3)))
	must(t, root.Chmod("a/dev", 0o4755))
	st, err := root.Lstat("a/dev")
	must(t, err)
	if st.Mode != unix.S_IFCHR|0o4755 || st.Rdev != unix.Mkdev(1, 3) {
		t.Errorf("device has mode %o, number %x", st.Mode, st.Rdev)
	}
	pd, base, err := root.Parent("a/dev")
	must(t, err)
	defer pd.Close()
	must(t, pd.chmodByProc(base, 0o600))
	must(t, pd.Lsetxattr(base, "trusted.x", []byte("1")))
	if v, err := pd.Lgetxattr(base, "trusted.x"); err != nil || string(v) != "1" {
		t.Errorf("Lgetxattr = %q, %v", v, err)
	}
	f, err := pd.Create("file", 0o640)
	must(t, err)
	f.Close()
	if _, err := pd.Create("file", 0o640); !errors.Is(err, fs.ErrExist) {
		t.Errorf("Create of what exists: %v", err)
	}
	must(t, root.RemoveAll("a"))
	must(t, root.RemoveAll("a"))
	must(t, root.RemoveAll("a/b/c"))
	if _, err := os.Lstat(filepath.Join(dir, "a")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a is still there: %v", err)
	}
}

func TestRemoveAllManyEntries(t *testing.T) {
	root, dir, _ := tree(t)
	must(t, root.MkdirAll("many/sub", 0o755))
	for i := range 3000 {
		must(t, os.WriteFile(filepath.Join(dir, "many", strings.Repeat("x", 1+i%200)+string(rune('a'+i%26))+time.Duration(i).String()), nil,
			0o600))
	}
	must(t, root.RemoveAll("many"))
	if _, err := root.Lstat("many"); !errors.Is(err, fs.ErrNotExist) {
		t.Error("many is still there")
	}
}

// TestRemoveAllDeep: directories that nest deeper than there are descriptors go, and a directory
// that was moved away meanwhile does not lead the removal along.
func TestRemoveAllDeep(t *testing.T) {
	const levels = 3000
	root, _, _ := tree(t)
	deep := func() {
		must(t, root.Mkdir("deep", 0o755))
		d, err := root.OpenDir("deep")
		must(t, err)
		for range levels {
			must(t, d.Mkdir("d", 0o755))
			f, err := d.Create("f", 0o600)
			must(t, err)
			must(t, f.Close())
			sub, err := d.OpenDir("d")
			must(t, err)
			must(t, d.Close())
			d = sub
		}
		must(t, d.Close())
	}
	deep()
	var old unix.Rlimit
	must(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &old))
	must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 200, Max: old.Max}))
	defer func() { must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &old)) }()
	// A removal with a descriptor for each level runs out of them.
	if err := os.RemoveAll(filepath.Join(root.Name(), "deep")); !errors.Is(err, unix.EMFILE) {
		t.Errorf("control: %v, want too many open files", err)
	}
	must(t, root.RemoveAll("deep"))
	if _, err := root.Lstat("deep"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("deep is still there: %v", err)
	}
	must(t, root.Mkdir("elsewhere", 0o755))
	must(t, root.MkdirAll("up/"+strings.Repeat("d/", maxHeld+3), 0o755))
	d, err := root.OpenDir("up/" + strings.Repeat("d/", maxHeld+2))
	must(t, err)
	defer d.Close()
	to, err := root.OpenDir("elsewhere")
	must(t, err)
	defer to.Close()
	must(t, d.Rename("d", to, "moved"))
	moved, err := to.OpenDir("moved")
	must(t, err)
	defer moved.Close()
	st, err := d.Stat()
	must(t, err)
	l := level{fd: -1, dev: st.Dev, ino: st.Ino}
	if err := l.wake(moved.fd); !errors.Is(err, ErrEscapes) {
		t.Errorf("back by way of a directory that was moved: %v", err)
	}
}

// TestRemoveAllMemory: a removal keeps the names in few directories, however deep they nest.
// Regression: it kept up to 32 KiB of names for each level of a container's directories.
func TestRemoveAllMemory(t *testing.T) {
	const levels, siblings = 300, 20
	root, _, _ := tree(t)
	must(t, root.MkdirAll("deep/deep", 0o755))
	parent, err := root.OpenDir("deep")
	must(t, err)
	defer parent.Close()
	d, err := parent.OpenDir("deep")
	must(t, err)
	for range levels {
		// Directories are listed from their oldest or their newest entry: both have siblings behind
		// them.
		for i := range 2 * siblings {
			if i == siblings {
				must(t, d.Mkdir("d", 0o755))
			}
			must(t, d.Symlink("x", fmt.Sprintf("%d", i)))
		}
		sub, err := d.OpenDir("d")
		must(t, err)
		must(t, d.Close())
		d = sub
	}
	must(t, d.Close())

	r := removal{top: parent.fd}
	defer r.close()
	must(t, r.remove(parent.fd, "deep"))
	var deepest, most int
	for len(r.levels) > 0 {
		must(t, r.step())
		held := 0
		for _, l := range r.levels {
			held += len(l.names)
		}
		deepest, most = max(deepest, len(r.levels)), max(most, held)
	}
	if deepest != levels {
		t.Errorf("went down %d levels, want %d", deepest, levels)
	}
	if limit := (maxHeld + 2) * 2 * siblings; most == 0 || most > limit {
		t.Errorf("held %d names, want at most %d", most, limit)
	}
	if _, err := root.Lstat("deep/deep"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("deep is still there: %v", err)
	}
}

// TestEnsureDirDeep makes directories of any number of missing levels below any number of levels
// that are there, through links, and finds out how deep they are.
func TestEnsureDirDeep(t *testing.T) {
	root, _, _ := tree(t)
	must(t, root.Mkdir("top", 0o755))
	must(t, root.Symlink("top", "way"))
	for there := range 9 {
		for missing := range 9 {
			name := fmt.Sprintf("%d-%d", there, missing)
			must(t, root.MkdirAll("top/"+name+strings.Repeat("/t", there), 0o755))
			path := "way/" + name + strings.Repeat("/t", there) + strings.Repeat("/m", missing)
			d, made, err := root.EnsureDir(path, 0o2750)
			must(t, err)
			if len(made) != missing || missing > 0 && made[missing-1] != path {
				t.Errorf("%s: made %q", name, made)
			}
			if st, err := d.Stat(); err != nil || missing > 0 && st.Mode&0o7777 != 0o2750 {
				t.Errorf("%s: mode %o, %v", name, st.Mode, err)
			}
			if depth, err := d.Depth(root); err != nil || depth != 2+there+missing {
				t.Errorf("%s: depth %d, %v", name, depth, err)
			}
			must(t, d.Close())
		}
	}
	if _, _, err := root.EnsureDir("none/../x", 0o755); err == nil {
		t.Error("made a directory to leave it again")
	}
}

// A component that flips between a directory and a link to the host while it is used
// must never lead outside.
func TestSymlinkSwap(t *testing.T) {
	root, dir, secret := tree(t)
	outside := filepath.Dir(secret)
	must(t, os.Mkdir(filepath.Join(dir, "real"), 0o755))
	must(t, os.WriteFile(filepath.Join(dir, "real", "secret"), []byte("inside"), 0o600))
	must(t, os.Symlink(outside, filepath.Join(dir, "trap")))
	must(t, os.Rename(filepath.Join(dir, "real"), filepath.Join(dir, "flip")))
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			default:
				// Both exist all the time; which is called flip changes.
				if err := unix.Renameat2(unix.AT_FDCWD, filepath.Join(dir, "flip"), unix.AT_FDCWD, filepath.Join(dir, "trap"),
					unix.RENAME_EXCHANGE); err != nil {
					t.Error(err)
					return
				}
			}
		}
	}()
	// A path that is followed does lead outside, or this test proves nothing.
	late := time.Now().Add(time.Minute)
	for data := ""; data != "outside"; {
		raw, _ := os.ReadFile(filepath.Join(dir, "flip", "secret"))
		data = string(raw)
		if time.Now().After(late) {
			t.Fatal("a path that is followed never leads outside")
		}
	}
	// However the two goroutines take turns, the link is met while it leads inside, and outside.
	read, refused := 0, 0
	late = time.Now().Add(time.Minute)
	for i := 0; i < 3000 || (read == 0 || refused == 0) && time.Now().Before(late); i++ {
		data, err := root.ReadFile("flip/secret", 100)
		if err != nil {
			refused++
		} else if read++; string(data) != "inside" {
			t.Fatalf("read %q from outside", data)
		}
		if data, err := root.Strict().ReadFile("flip/../flip/secret", 100); err == nil && string(data) != "inside" {
			t.Fatalf("read %q from outside", data)
		}
		name := "flip/made" + time.Duration(i).String()
		_ = root.Mkdir(name, 0o755) // fails half of the time
		_ = root.RemoveAll(name)
	}
	close(stop)
	<-stopped
	if read == 0 || refused == 0 {
		t.Errorf("read %d times, refused %d times: want both", read, refused)
	}
	left, err := os.ReadDir(outside)
	must(t, err)
	if len(left) != 2 {
		t.Errorf("outside has %v, want root and secret only", left)
	}
	if data, err := os.ReadFile(secret); err != nil || string(data) != "outside" {
		t.Errorf("secret is %q, %v", data, err)
	}
}

func TestOpenRootErrors(t *testing.T) {
	if _, err := Open(filepath.Join(t.TempDir(), "none")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("missing root: %v", err)
	}
	file := filepath.Join(t.TempDir(), "file")
	must(t, os.WriteFile(file, nil, 0o600))
	if _, err := Open(file); !errors.Is(err, unix.ENOTDIR) {
		t.Errorf("file as root: %v", err)
	}
}

func TestOpenFd(t *testing.T) {
	_, dir, _ := tree(t)
	d, err := os.Open(dir)
	must(t, err)
	root, err := OpenFd(int(d.Fd()), dir)
	must(t, err)
	d.Close()
	defer root.Close()
	if _, err := root.ReadFile("/abs/passwd", 100); err != nil {
		t.Error(err)
	}
	if root.Name() != dir {
		t.Errorf("Name = %q", root.Name())
	}
}

// FuzzPath asks for arbitrary paths: whatever comes back must be from inside.
func FuzzPath(f *testing.F) {
	for _, s := range []string{
		"etc/passwd", "../secret", "up-file", "abs/../../secret", "host/secret", "magic/etc", "//",
		"etc//..///../secret",
	} {
		f.Add(s)
	}
	root, _, secret := tree(f)
	f.Fuzz(func(t *testing.T, path string) {
		for _, r := range []*Root{root, root.Strict()} {
			if data, err := r.ReadFile(path, 100); err == nil && string(data) == "outside" {
				t.Errorf("ReadFile(%q) left the root", path)
			}
			if err := r.Symlink("x", path); err == nil {
				if err := r.Remove(path); err != nil {
					t.Errorf("Remove(%q): %v", path, err)
				}
			}
		}
		if _, err := os.Lstat(secret); err != nil {
			t.Fatalf("path %q removed the file outside: %v", path, err)
		}
	})
}
