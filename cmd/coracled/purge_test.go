package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

func TestRemoveOwnLeavesForeignFiles(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	for _, name := range []string{"pods/a", "lock", "mine"} {
		if err := os.MkdirAll(filepath.Join(dir, name), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := removeOwn(dir, ownState); err != nil {
		t.Fatal(err)
	}
	left, err := os.ReadDir(dir)
	if err != nil || len(left) != 1 || left[0].Name() != "mine" {
		t.Errorf("left %v, %v", left, err)
	}
	if err := os.Remove(filepath.Join(dir, "mine")); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second time there is nothing
		if err := removeOwn(dir, ownState); err != nil {
			t.Error(err)
		}
	}
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("the empty directory stays: %v", err)
	}
}

func TestRemoveOwnDoesNotEnterMounts(t *testing.T) {
	dir := t.TempDir()
	at := filepath.Join(dir, "containers", "c1", "rootfs")
	if err := os.MkdirAll(at, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("test", at, "tmpfs", 0, "size=64k"); err != nil {
		t.Fatalf("this test needs root: %v", err)
	}
	defer func() {
		if err := unix.Unmount(at, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	}()
	inside := filepath.Join(at, "data")
	if err := os.WriteFile(inside, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	for _, way := range []string{dir, link} {
		if err := removeOwn(way, ownState); err == nil || !strings.Contains(err.Error(), at+" is still mounted") {
			t.Errorf("%s: %v", way, err)
		}
		if _, err := os.Stat(inside); err != nil {
			t.Errorf("%s: deleted through the mount: %v", way, err)
		}
	}
}

func TestRemoveCgroup(t *testing.T) {
	hierarchies, err := mountinfo.GetMounts(mountinfo.FSTypeFilter("cgroup", "cgroup2"))
	if err != nil || len(hierarchies) == 0 {
		t.Fatalf("this test needs cgroups: %v", err)
	}
	name := fmt.Sprintf("/coracled-test-%d", os.Getpid())
	top := filepath.Join(hierarchies[0].Mountpoint, name)
	inner := filepath.Join(top, "other")
	if err := os.MkdirAll(inner, 0o755); err != nil {
		t.Fatalf("this test needs root: %v", err)
	}
	if err := removeCgroup(name); err != nil {
		t.Errorf("with another's cgroup in it: %v", err)
	}
	if err := os.Remove(inner); err != nil {
		t.Errorf("another's cgroup is gone: %v", err)
	}
	for range 2 { // the second time there is nothing
		if err := removeCgroup(name); err != nil {
			t.Error(err)
		}
	}
	if _, err := os.Stat(top); !os.IsNotExist(err) {
		t.Errorf("it stays: %v", err)
		_ = os.Remove(top)
	}
}
