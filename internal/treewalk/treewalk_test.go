package treewalk

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func open(t *testing.T, dir string) int {
	t.Helper()
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	must(t, err)
	t.Cleanup(func() { must(t, unix.Close(fd)) })
	return fd
}

// walked walks with what the walker may hold, and checks that nothing of that is left.
func walked(t *testing.T, dir string, change func(*walker), report func(Found)) (total Size) {
	t.Helper()
	before := descriptors(t)
	w := walker{ctx: t.Context(), maxPending: maxPending, maxLinked: maxLinked, maxHeld: maxHeld, report: func(f Found) {
		total.Add(f.Size)
		if report != nil {
			report(f)
		}
	}}
	if change != nil {
		change(&w)
	}
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	must(t, err)
	must(t, errors.Join(w.walk(fd), unix.Close(fd)))
	if w.pending != 0 || w.nested != 0 || w.held != 0 || len(w.linked) > w.maxLinked {
		t.Errorf("pending %d, nested %d, held %d, %d linked", w.pending, w.nested, w.held, len(w.linked))
	}
	if after := descriptors(t); after != before {
		t.Errorf("%d descriptors before, %d after", before, after)
	}
	return total
}

func descriptors(t *testing.T) int {
	t.Helper()
	all, err := os.ReadDir("/proc/self/fd")
	must(t, err)
	return len(all)
}

func TestNames(t *testing.T) {
	root := t.TempDir()
	must(t, os.MkdirAll(filepath.Join(root, "a", "b"), 0o755))
	must(t, os.WriteFile(filepath.Join(root, "a", "b", "f"), nil, 0o644))
	must(t, os.Symlink("/", filepath.Join(root, "a", "link")))
	want := map[string]bool{"": true, "a": true, "a/b": true, "a/b/f": true, "a/link": true}
	for name, change := range map[string]func(*walker){"": nil, "with no room": func(w *walker) { w.maxPending = 0 }} {
		got := map[string]bool{}
		walked(t, root, change, func(f Found) { got[filepath.Join(f.Dir, f.Name)] = true })
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%s: found %v", name, got)
		}
	}
}

// A container could make the daemon remember all its directories and hard links.
func TestLittleMemory(t *testing.T) {
	dir := t.TempDir()
	for i := range 20 {
		below := filepath.Join(dir, fmt.Sprint(i), "a", "b")
		must(t, os.MkdirAll(below, 0o755))
		name := filepath.Join(below, "file")
		must(t, os.WriteFile(name, make([]byte, 10_000), 0o644))
		for _, link := range []string{"link", "../link"} {
			must(t, os.Link(name, filepath.Join(below, link)))
		}
	}
	must(t, unix.Syncfs(open(t, dir))) // so that blocks are allocated
	of := func(pending, linked int) Size {
		return walked(t, dir, func(w *walker) { w.maxPending, w.maxLinked = pending, linked }, nil)
	}
	want := of(maxPending, maxLinked)
	if want.Inodes() != 1+20*4 {
		t.Fatalf("%+v", want)
	}
	for _, room := range []struct{ pending, linked int }{{0, maxLinked}, {8, maxLinked}, {maxPending, 0}, {maxPending, 7}, {0, 0}} {
		if got := of(room.pending, room.linked); got.Inodes() != want.Inodes() || got.Bytes < want.Bytes-100 || got.Bytes > want.Bytes {
			t.Errorf("with room for %+v: %+v, want %+v", room, got, want)
		}
	}
}

// memory is a directory on a file system of its own in memory, where making directories is quick.
func memory(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	must(t, unix.Mount("tmpfs", dir, "tmpfs", 0, ""))
	t.Cleanup(func() { must(t, unix.Unmount(dir, unix.MNT_DETACH)) })
	return dir
}

// nested makes a chain of directories, each with a second one in it, and returns the
// directories in it at some depths.
func nested(t *testing.T, root string, depth int, name string, at ...int) (paths []int) {
	t.Helper()
	fd, err := unix.Open(root, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	must(t, err)
	for i := range depth {
		must(t, errors.Join(unix.Mkdirat(fd, name, 0o755), unix.Mkdirat(fd, "beside", 0o755)))
		next, err := unix.Openat(fd, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		must(t, err)
		for _, a := range at {
			if a == i {
				kept, err := unix.Dup(fd)
				must(t, err)
				t.Cleanup(func() { must(t, unix.Close(kept)) })
				paths = append(paths, kept)
			}
		}
		must(t, unix.Close(fd))
		fd = next
	}
	must(t, unix.Close(fd))
	return paths
}

// However deep a tree is, all of it is found with few descriptors, and names stay short.
func TestDeep(t *testing.T) {
	for _, tc := range []struct {
		depth int
		name  string
		held  int
	}{
		{3000, strings.Repeat("d", 20), maxHeld},
		{1600, strings.Repeat("d", 20), 0},
		{60, strings.Repeat("d", 255), 2},
		{1200, "d", 0},
	} {
		dir := memory(t)
		nested(t, dir, tc.depth, tc.name)
		n, longest, most := 0, 0, 0
		walked(t, dir, func(w *walker) { w.maxHeld = tc.held }, func(f Found) {
			n++
			longest = max(longest, len(f.Dir))
			if n%100 == 0 {
				most = max(most, descriptors(t))
			}
		})
		if n != 1+2*tc.depth || longest > maxDir {
			t.Errorf("%+v: %d found; the longest name has %d bytes", tc, n, longest)
		}
		if most > descriptors(t)+tc.held+8 {
			t.Errorf("%+v: %d descriptors were open", tc, most)
		}
	}
}

// If a directory is moved away while its content is read, the walk loses the rest of it, and
// the walk does not follow.
func TestMoved(t *testing.T) {
	root := memory(t)
	dir, elsewhere := filepath.Join(root, "dir"), filepath.Join(root, "elsewhere")
	must(t, errors.Join(os.Mkdir(dir, 0o755), os.Mkdir(elsewhere, 0o755)))
	const depth = 1000
	kept := nested(t, dir, depth, strings.Repeat("d", 20), 500)
	must(t, os.WriteFile(filepath.Join(elsewhere, "secret"), nil, 0o644))
	n, moved := 0, false
	walked(t, dir, func(w *walker) { w.maxHeld = 1 }, func(f Found) {
		n++
		if n > depth && !moved { // far below what is moved
			moved = true
			must(t, unix.Renameat(kept[0], strings.Repeat("d", 20), unix.AT_FDCWD, filepath.Join(elsewhere, "moved")))
		}
		if f.Name == "secret" {
			t.Error("the walk left its tree")
		}
	})
	if !moved || n < depth || n > 2*depth {
		t.Errorf("moved %v, %d found", moved, n)
	}
}

func TestStaysOnTheFileSystem(t *testing.T) {
	dir := t.TempDir()
	at := filepath.Join(dir, "mnt")
	must(t, os.Mkdir(at, 0o755))
	must(t, unix.Mount("tmpfs", at, "tmpfs", 0, ""))
	defer func() { must(t, unix.Unmount(at, unix.MNT_DETACH)) }()
	must(t, os.WriteFile(filepath.Join(at, "file"), nil, 0o644))
	if total := walked(t, dir, nil, nil); total.Inodes() != 1 {
		t.Errorf("%d inodes", total.Inodes())
	}
}

func TestCancelled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Sum(ctx, open(t, t.TempDir())); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}
