//go:build vm

package volume

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/coracle-project/coracle/cluster/kubelet/volume/layout"
	"github.com/coracle-project/coracle/cluster/kubelet/volume/mountpoint"
)

// These tests need a kernel's NFS server that runs, and its tools: `make test-vm` runs them in a
// virtual machine.

func command(t *testing.T, args ...string) {
	t.Helper()
	if said, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
		t.Fatalf("%v: %v: %s", args, err, said)
	}
}

// export returns a directory that the server exports.
func export(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/srv", "export") // not of this mount namespace alone
	if err != nil {
		t.Fatal(err)
	}
	command(t, "exportfs", "-o", "rw,no_root_squash,no_subtree_check,insecure", "127.0.0.1:"+dir)
	t.Cleanup(func() {
		command(t, "exportfs", "-u", "127.0.0.1:"+dir)
		_ = os.RemoveAll(dir)
	})
	return dir
}

func sharePod(path string) *v1.Pod {
	return podWith(vol("share", v1.VolumeSource{NFS: &v1.NFSVolumeSource{Server: "127.0.0.1", Path: path}}))
}

// silence has the server not answer any more, as one that is cut off does, until the test ends.
func silence(t *testing.T) {
	t.Helper()
	const rules = `table inet silence { chain in { type filter hook input priority 0; tcp dport 2049 drop; tcp sport 2049 drop; }; }`
	command(t, "nft", rules)
	t.Cleanup(func() { command(t, "nft", "delete table inet silence") })
}

func TestNFSServer(t *testing.T) {
	exported := export(t)
	n, pod := newNode(t), sharePod(exported)
	n.mount(pod)
	dir := n.path(pod, layout.VolumesDir, "kubernetes.io~nfs", "share")
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil || fs.Type != unix.NFS_SUPER_MAGIC {
		t.Fatalf("the volume is %#x, %v", fs.Type, err)
	}
	if err := os.WriteFile(filepath.Join(dir, "file"), []byte("over the network\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	wantFile(t, filepath.Join(exported, "file"), "over the network\n")
	n.restart(n.opts.RootDir)
	n.mount(pod)
	n.unmount(pod)
	wantFile(t, filepath.Join(exported, "file"), "over the network\n")
}

func TestNFSServerRefuses(t *testing.T) {
	n, pod := newNode(t), sharePod("/srv/not-exported")
	n.wantRefused(pod, "mount nfs 127.0.0.1:/srv/not-exported: exit status 32: ")
	n.unmount(pod)
}

// A server that goes away keeps no pod from ending, with data that it has not got yet, and a pod
// that comes is told whose fault it is.
func TestNFSServerGoesAway(t *testing.T) {
	exported := export(t)
	n, pod := newNode(t), sharePod(exported)
	n.mount(pod)
	dir := n.path(pod, layout.VolumesDir, "kubernetes.io~nfs", "share")
	if err := os.WriteFile(filepath.Join(dir, "before"), []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	f, err := os.Create(filepath.Join(dir, "file"))
	if err != nil {
		t.Fatal(err)
	}
	silence(t)
	if _, err := f.WriteString("in the page cache only"); err != nil {
		t.Fatal(err)
	}
	go f.Close() // waits for the server

	other := sharePod(exported)
	other.UID = "other"
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	began := time.Now()
	err = n.Mount(ctx, other)
	if err == nil || !strings.Contains(err.Error(), `the server "127.0.0.1" does not answer`) {
		t.Errorf("mounting from a server that is gone: %v", err)
	}
	if took := time.Since(began); took > time.Minute {
		t.Errorf("it took %s", took)
	}
	for _, pod := range []*v1.Pod{pod, other} {
		done := make(chan error, 1)
		go func() { done <- n.Unmount(t.Context(), pod.UID) }()
		select {
		case err := <-done:
			if err != nil {
				t.Errorf("unmounting from a server that is gone: %v", err)
			}
		case <-time.After(time.Minute):
			t.Fatal("unmounting waits for a server that is gone")
		}
	}
	if mountpoint.Is(dir) {
		t.Error("it is still mounted")
	}
}
