package snapshot

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/snapshot/driver"

	"github.com/coracle-project/coracle/snapshot/layer"
)

// drivers are all that there are. Each test below is one thing that they must do alike.
var drivers = []DriverName{Overlay, EROFS, Native}

func eachDriver(t *testing.T, test func(t *testing.T, s *Store)) {
	for _, name := range drivers {
		t.Run(string(name), func(t *testing.T) {
			test(t, startedWith(t, Config{Root: t.TempDir(), Driver: name}))
		})
	}
}

// again is the store after kill -9 and a new start.
func again(t *testing.T, s *Store) *Store {
	t.Helper()
	_ = s.Close()
	return startedWith(t, Config{Root: s.root, Driver: s.driverName})
}

// hide puts the driver's whiteout for path into an unpacked layer.
func hide(t *testing.T, s *Store, path string) {
	t.Helper()
	if s.Markers() == FileMarkers {
		write(t, filepath.Join(filepath.Dir(path), whiteoutPrefix+filepath.Base(path)), "")
		return
	}
	must(t, unix.Mknod(path, unix.S_IFCHR, 0))
}

// hideAll makes a directory of an unpacked layer opaque.
func hideAll(t *testing.T, s *Store, dir string) {
	t.Helper()
	if s.Markers() == FileMarkers {
		write(t, filepath.Join(dir, opaqueFile), "")
		return
	}
	must(t, unix.Setxattr(dir, opaqueXattr, []byte("y"), 0))
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// twoLayers are a layer with something of everything, and one above that hides some.
func twoLayers(t *testing.T, s *Store) []digest.Digest {
	t.Helper()
	lower := commitLayer(t, s, "lower", func(dir string) {
		at := func(name string) string { return filepath.Join(dir, name) }
		must(t, errors.Join(
			os.Mkdir(at("d"), 0o750), os.Mkdir(at("o"), 0o755), os.Mkdir(at("gone"), 0o755), os.Mkdir(at("over"), 0o755),
			os.Symlink("/d/file", at("link")), unix.Mknod(at("null"), unix.S_IFCHR|0o600, int(unix.Mkdev(1, 3))), unix.Mkfifo(at("fifo"), 0o600),
		))
		for _, name := range []string{"d/file", "d/other", "o/hidden", "gone/x", "plain", "deleted", "over/x", "suid"} {
			write(t, at(name), name)
		}
		must(t, errors.Join(
			os.Link(at("plain"), at("d/hard")), os.Chown(at("suid"), 7, 100000), unix.Chmod(at("suid"), 0o4755),
			unix.Setxattr(at("plain"), "security.capability", capability, 0), os.Chmod(at("plain"), 0o640),
		))
		sparse, err := os.Create(at("sparse"))
		must(t, err)
		_, err = sparse.WriteAt([]byte("end"), 1<<20)
		must(t, errors.Join(err, sparse.Close()))
	})
	upper := commitLayer(t, s, "upper", func(dir string) {
		at := func(name string) string { return filepath.Join(dir, name) }
		must(t, errors.Join(os.Mkdir(at("d"), 0o700), os.Mkdir(at("o"), 0o755)))
		hide(t, s, at("d/other"))
		hide(t, s, at("deleted"))
		hide(t, s, at("gone"))
		write(t, at("over"), "a file now")
		hideAll(t, s, at("o"))
		write(t, at("o/new"), "new")
	})
	return []digest.Digest{lower, upper}
}

// capability is cap_net_raw=ep, revision 2.
var capability = []byte{1, 0, 0, 2, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}

// looks describes what a tree shows, a line for each name.
func looks(t *testing.T, root string) map[string]string {
	t.Helper()
	tree := map[string]string{}
	must(t, filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			return err
		}
		line := fmt.Sprintf("%o %d:%d", st.Mode, st.Uid, st.Gid)
		switch e.Type() {
		case 0:
			data, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			line += " " + digest.FromBytes(data).Encoded()[:12]
		case fs.ModeSymlink:
			to, err := os.Readlink(path)
			if err != nil {
				return err
			}
			line += " -> " + to
		case fs.ModeDevice | fs.ModeCharDevice:
			line += fmt.Sprint(" device ", st.Rdev)
		}
		value := make([]byte, 100)
		if n, err := unix.Lgetxattr(path, "security.capability", value); err == nil {
			line += " capable " + digest.FromBytes(value[:n]).Encoded()[:6]
		}
		rel, _ := filepath.Rel(root, path)
		tree[rel] = line
		return nil
	}))
	return tree
}

func TestDriverShowsMergedLayers(t *testing.T) {
	eachDriver(t, func(t *testing.T, s *Store) {
		layers := twoLayers(t, s)
		snap := prepared(t, s, "c", layers...)
		got := slices.Sorted(maps.Keys(looks(t, snap.Target)))
		want := []string{".", "d", "d/file", "d/hard", "fifo", "link", "null", "o", "o/new", "over", "plain", "sparse", "suid"}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
		var plain, hard, suid, d unix.Stat_t
		at := func(name string) string { return filepath.Join(snap.Target, name) }
		must(t, errors.Join(unix.Lstat(at("plain"), &plain), unix.Lstat(at("d/hard"), &hard), unix.Lstat(at("suid"), &suid),
			unix.Lstat(at("d"), &d)))
		if plain.Ino != hard.Ino || plain.Nlink != 2 {
			t.Errorf("hard links are inodes %d and %d", plain.Ino, hard.Ino)
		}
		if suid.Uid != 7 || suid.Gid != 100000 || suid.Mode&0o7777 != 0o4755 {
			t.Errorf("suid is %d:%d %o", suid.Uid, suid.Gid, suid.Mode)
		}
		if d.Mode&0o7777 != 0o700 {
			t.Errorf("directory has mode %o, not the upper layer's", d.Mode)
		}
		if !strings.Contains(looks(t, snap.Target)["plain"], "capable") {
			t.Error("the capability is lost")
		}
		var sparse unix.Stat_t
		must(t, unix.Lstat(at("sparse"), &sparse))
		taken := sparse.Blocks * 512
		if s.driverName == EROFS { // which reports blocks as if there were no holes
			u, err := s.LayerUsage(layers[0])
			must(t, err)
			taken = u.Bytes / 4 // the image has other files, too
		}
		if sparse.Size != 1<<20+3 || taken > 64<<10 {
			t.Errorf("sparse file has %d bytes and takes %d", sparse.Size, taken)
		}
	})
}

func TestDriverLife(t *testing.T) {
	eachDriver(t, func(t *testing.T, s *Store) {
		layers := twoLayers(t, s)
		snap := prepared(t, s, "c", layers...)
		write(t, filepath.Join(snap.Target, "mine"), "x")
		s = again(t, s)
		if _, err := s.Prepare(t.Context(), "c", snap.options()); err != nil {
			t.Fatal(err)
		}
		mountOf(t, snap.Target)
		if read(t, filepath.Join(snap.Target, "mine")) != "x" || read(t, filepath.Join(snap.Upper, "mine")) != "x" {
			t.Error("what was written is gone after a restart")
		}
		u, err := s.Usage(t.Context(), "c")
		if err != nil || u.Inodes < 2 || u.Bytes <= 0 {
			t.Errorf("usage %+v, %v", u, err)
		}
		if err := s.RemoveLayer(t.Context(), layers[0]); !errors.Is(err, ErrLayerInUse) {
			t.Errorf("a layer in use is removed: %v", err)
		}
		for range 2 {
			must(t, s.Remove(t.Context(), "c"))
		}
		for _, d := range layers {
			must(t, s.RemoveLayer(t.Context(), d))
		}
		must(t, s.Flush(t.Context()))
		for _, dir := range []string{layer.Top(s.root), s.snapshotsDir(), s.stagingDir()} {
			if left, _ := os.ReadDir(dir); len(left) > 0 {
				t.Errorf("%s has %v", dir, left)
			}
		}
		if exists(snap.Target) {
			t.Error("the target is left")
		}
	})
}

func TestDriverLostInAReset(t *testing.T) {
	eachDriver(t, func(t *testing.T, s *Store) {
		snap := prepared(t, s, "c", twoLayers(t, s)...)
		write(t, filepath.Join(snap.Target, "mine"), "x")
		must(t, s.driver.Unmount(snap.Target))
		s = again(t, s)
		if _, err := s.Prepare(t.Context(), "c", snap.options()); !errors.Is(err, ErrUnclean) {
			t.Errorf("error %v", err)
		}
		must(t, s.Recover(t.Context(), nil))
		if len(s.List()) != 0 {
			t.Errorf("left: %v", s.List())
		}
	})
}

func TestDriverUnmountsStrays(t *testing.T) {
	eachDriver(t, func(t *testing.T, s *Store) {
		snap := prepared(t, s, "c")
		elsewhere := t.TempDir()
		must(t, unix.Mount(snap.Target, elsewhere, "", unix.MS_BIND, ""))
		again(t, s)
		if m, err := driver.IsMountRoot(elsewhere); err != nil || m {
			t.Errorf("mounted %t, %v", m, err)
		}
		mountOf(t, snap.Target)
	})
}

func TestDriverReadOnly(t *testing.T) {
	eachDriver(t, func(t *testing.T, s *Store) {
		o := PrepareOptions{Layers: twoLayers(t, s), Target: filepath.Join(t.TempDir(), "root"), Access: ReadOnly}
		_, err := s.Prepare(t.Context(), "c", o)
		must(t, err)
		if err := os.WriteFile(filepath.Join(o.Target, "x"), nil, 0o600); !errors.Is(err, unix.EROFS) {
			t.Errorf("write: %v", err)
		}
		o.Access = ReadWrite
		if _, err := s.Prepare(t.Context(), "c", o); !errors.Is(err, ErrExists) {
			t.Errorf("other access: %v", err)
		}
	})
}

func TestDriverMapsIDs(t *testing.T) {
	eachDriver(t, func(t *testing.T, s *Store) {
		layers := twoLayers(t, s)
		plain := looks(t, prepared(t, s, "plain", layers...).Target)
		o := PrepareOptions{Layers: layers, Target: filepath.Join(t.TempDir(), "root"), Users: Users{
			UIDs: []IDMap{{Container: 0, Host: 200000, Length: 65536}},
			GIDs: []IDMap{{Container: 0, Host: 300000, Length: 165536}},
		}}
		snap, err := s.Prepare(t.Context(), "c", o)
		must(t, err)
		var st unix.Stat_t
		for name, want := range map[string][2]uint32{".": {200000, 300000}, "plain": {200000, 300000}, "suid": {200007, 400000}} {
			must(t, unix.Lstat(filepath.Join(snap.Target, name), &st))
			if st.Uid != want[0] || st.Gid != want[1] {
				t.Errorf("%s is %d:%d, want %v", name, st.Uid, st.Gid, want)
			}
		}
		root, err := unix.Open(snap.Target, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		must(t, err)
		defer unix.Close(root)
		make := func() error { return unix.Mkdirat(root, "mine", 0o755) }
		if err := asUser(200001, 300001, make); !errors.Is(err, unix.EACCES) {
			t.Errorf("another user writes where root may: %v", err)
		}
		must(t, asUser(200000, 300000, make))
		must(t, unix.Lstat(filepath.Join(snap.Upper, "mine"), &st))
		if st.Uid != 0 || st.Gid != 0 {
			t.Errorf("on disk it is %d:%d, not the container's own 0:0", st.Uid, st.Gid)
		}
		if diff := cmp.Diff(plain, looks(t, prepared(t, s, "later", layers...).Target)); diff != "" {
			t.Errorf("the layers changed: %s", diff)
		}
		again(t, s)
		mountOf(t, snap.Target)
	})
}

func TestDriverProbesUsers(t *testing.T) {
	eachDriver(t, func(t *testing.T, s *Store) {
		must(t, s.ProbeUsers(t.Context()))
		if left, _ := os.ReadDir(s.stagingDir()); len(left) > 0 {
			t.Errorf("left: %v", left)
		}
	})
}
