package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// privately runs the test that calls it once more, in a mount namespace of its own, and returns
// whether this is that second time.
func privately(t *testing.T) bool {
	t.Helper()
	const inside = "CORACLE_TEST_MOUNTS"
	if os.Getenv(inside) != "" {
		return true
	}
	cmd := exec.Command("/proc/self/exe", "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Env = append(os.Environ(), inside+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	if said, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("in a mount namespace of its own, which needs root: %v\n%s", err, said)
	}
	return false
}

// An operator's own disks are emptied and stay where they are.
func TestRemoveTreeWithMounts(t *testing.T) {
	if !privately(t) {
		return
	}
	for name, mounts := range map[string][]string{
		"none":           nil,
		"the top":        {"."},
		"below":          {"etcd/member"},
		"both":           {".", "etcd"},
		"two on another": {"etcd", "etcd"},
	} {
		t.Run(name, func(t *testing.T) {
			// As where the root is a link to a disk.
			dir := filepath.Join(t.TempDir(), "kube")
			link := filepath.Join(t.TempDir(), "link")
			if err := os.Symlink(filepath.Dir(dir), link); err != nil {
				t.Fatal(err)
			}
			if err := os.Mkdir(dir, 0o700); err != nil {
				t.Fatal(err)
			}
			var want []string
			for _, m := range mounts {
				path := filepath.Join(dir, m)
				if err := os.MkdirAll(path, 0o700); err != nil {
					t.Fatal(err)
				}
				if err := unix.Mount("tmpfs", path, "tmpfs", 0, ""); err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = unix.Unmount(path, unix.MNT_DETACH) })
				want = append(want, path)
			}
			want = slices.Compact(want)
			for _, file := range []string{"pki/ca.crt", "etcd/member/wal", "kubelet/pods/u/x"} {
				path := filepath.Join(dir, file)
				if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, nil, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			emptied, err := removeTree(filepath.Join(link, "kube"))
			if err != nil || !slices.Equal(emptied, want) {
				t.Fatalf("emptied %q, %v, want %q", emptied, err, want)
			}
			if len(mounts) == 0 {
				if _, err := os.Stat(dir); err == nil {
					t.Error("it is still there")
				}
				return
			}
			_ = filepath.Walk(dir, func(path string, info os.FileInfo, err error) error {
				if err != nil || !info.IsDir() || !slices.ContainsFunc(want, func(m string) bool {
					return path == m || filepath.Dir(m) == path || filepath.Dir(filepath.Dir(m)) == path
				}) {
					t.Errorf("left: %s, %v", path, err)
				}
				return nil
			})
		})
	}
	if emptied, err := removeTree(filepath.Join(t.TempDir(), "nothing")); err != nil || emptied != nil {
		t.Errorf("nothing to remove: %q, %v", emptied, err)
	}
}

// Regression: a leave that was killed could leave the cluster's keys without its data, and the next
// start served an empty cluster to all who trusted them.
func TestKeysAreRemovedBeforeData(t *testing.T) {
	p := place{root: t.TempDir(), state: t.TempDir()}
	for _, file := range []string{"etcd/member/wal", "pki/ca.pem"} {
		path := filepath.Join(p.kubeRoot(), file)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	watch, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(watch)
	for _, dir := range []string{"etcd", "pki"} {
		if _, err := unix.InotifyAddWatch(watch, filepath.Join(p.kubeRoot(), dir), unix.IN_DELETE); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := removeCluster(p, upOptions{}); err != nil {
		t.Fatal(err)
	}
	events := make([]byte, 4096)
	n, err := unix.Read(watch, events)
	if err != nil {
		t.Fatal(err)
	}
	keys, data := bytes.Index(events[:n], []byte("ca.pem\x00")), bytes.Index(events[:n], []byte("member\x00"))
	if keys < 0 || data < 0 || keys > data {
		t.Errorf("the keys were removed at %d and the data at %d of %q", keys, data, events[:n])
	}
}
