package snapshot

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func usage(t *testing.T, s *Store, id string) Usage {
	t.Helper()
	u, err := s.Usage(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	return u
}

func TestUsage(t *testing.T) {
	s := started(t, t.TempDir())
	snap := prepared(t, s, "c", commitLayers(t, s, 1)...)
	before := usage(t, s, "c")
	if before.Inodes != 1 {
		t.Errorf("empty: %+v", before)
	}
	big := filepath.Join(snap.Target, "big")
	write(t, big, strings.Repeat("x", 1<<20))
	if f, err := os.OpenFile(big, os.O_WRONLY, 0); err != nil || errors.Join(f.Sync(), f.Close()) != nil {
		t.Fatal("cannot sync") // so that its blocks are allocated
	}
	for _, link := range []error{
		os.Link(big, filepath.Join(snap.Target, "link")),
		os.Mkdir(filepath.Join(snap.Target, "dir"), 0o755),
		os.Symlink("/etc", filepath.Join(snap.Target, "symlink")),
		os.Link(big, filepath.Join(snap.Target, "dir", "link")),
	} {
		if link != nil {
			t.Fatal(link)
		}
	}
	u := usage(t, s, "c")
	if u.Inodes != before.Inodes+3 { // one file of three names, a directory, a symbolic link
		t.Errorf("%d inodes more", u.Inodes-before.Inodes)
	}
	if grown := u.Bytes - before.Bytes; grown < 1<<20 || grown > 1<<20+64<<10 {
		t.Errorf("%d bytes more", grown)
	}
	if _, err := s.Usage(t.Context(), "unknown"); !errors.Is(err, ErrNotFound) {
		t.Errorf("unknown: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.Usage(ctx, "c"); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

func TestUsageStaysOnTheFileSystem(t *testing.T) {
	s := started(t, t.TempDir())
	snap := prepared(t, s, "c")
	dir := filepath.Join(snap.Upper, "mnt")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	}()
	write(t, filepath.Join(dir, "file"), strings.Repeat("x", 1<<20))
	if u := usage(t, s, "c"); u.Inodes != 1 || u.Bytes >= 1<<20 {
		t.Errorf("%+v", u)
	}
}

// A container can nest directories deeper than any path is long, and than there are
// descriptors.
func TestDeepTree(t *testing.T) {
	s := started(t, t.TempDir())
	snap := prepared(t, s, "c")
	const depth = 3000
	name := strings.Repeat("d", 20)
	fd, err := unix.Open(snap.Upper, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	for range depth {
		if err := unix.Mkdirat(fd, name, 0o755); err != nil {
			t.Fatal(err)
		}
		next, err := unix.Openat(fd, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		_ = unix.Close(fd)
		if err != nil {
			t.Fatal(err)
		}
		fd = next
	}
	_ = unix.Close(fd)
	if u := usage(t, s, "c"); u.Inodes != depth+1 {
		t.Errorf("%d inodes, want %d", u.Inodes, depth+1)
	}
	if err := errors.Join(s.Remove(t.Context(), "c"), s.Flush(t.Context())); err != nil {
		t.Fatal(err)
	}
	if left, _ := os.ReadDir(s.stagingDir()); len(left) > 0 {
		t.Errorf("left: %d", len(left))
	}
}
