package volume

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/coracle-project/coracle/cluster/kubelet/volume/layout"
	"github.com/coracle-project/coracle/cluster/kubelet/volume/mountpoint"
	"github.com/coracle-project/coracle/cluster/kubelet/volume/nfs"
)

// newNFS returns a node whose mount.nfs is a script, and a pod with an NFS volume.
func newNFS(t *testing.T, script string) (n *node, pod *v1.Pod, log string) {
	t.Helper()
	n = newNode(t)
	dir := t.TempDir()
	log = filepath.Join(dir, "log")
	if script != "" {
		if err := os.WriteFile(filepath.Join(dir, "mount.nfs"), []byte("#!/bin/sh\necho \"$@\" >>"+log+"\n"+script+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for i, src := range n.sources {
		if _, ok := src.(nfs.Volumes); ok {
			n.sources[i] = nfs.Volumes{Places: []string{dir}}
		}
	}
	return n, podWith(vol("share", v1.VolumeSource{NFS: &v1.NFSVolumeSource{Server: "fd00::1", Path: "/export", ReadOnly: true}})), log
}

func TestNFS(t *testing.T) {
	n, pod, log := newNFS(t, `exec mount -t tmpfs none "$2"`)
	n.mount(pod)
	dir := n.path(pod, layout.VolumesDir, "kubernetes.io~nfs", "share")
	wantFile(t, log, "[fd00::1]:/export "+dir+" -o ro\n")
	if paths, _ := n.mounts(pod); len(paths) != 1 || paths[0] != dir || !mountpoint.Is(dir) {
		t.Errorf("mounts %q", paths)
	}
	n.restart(n.opts.RootDir)
	n.mount(pod) // it is mounted: no helper is needed
	wantFile(t, log, "[fd00::1]:/export "+dir+" -o ro\n")
	n.unmount(pod)
	if mountpoint.Is(dir) {
		t.Error("it is still mounted")
	}
}

func TestNFSThatCannotBeMounted(t *testing.T) {
	n, pod, _ := newNFS(t, "")
	n.wantRefused(pod, "this node has no mount.nfs: install nfs-common")
	n, pod, _ = newNFS(t, "echo access denied by server >&2; exit 32")
	n.wantRefused(pod, "mount nfs [fd00::1]:/export: exit status 32: access denied by server")
	n.unmount(pod)
	pod.Spec.Volumes[0].NFS.Server = "-overbose"
	n.wantRefused(pod, `"-overbose" is no name of a server`)
	n.unmount(pod)
}

// A server that does not answer holds up only its pod, and that only until the pod is deleted.
func TestNFSThatHangs(t *testing.T) {
	n, pod, log := newNFS(t, "exec sleep 1000")
	ctx, cancel := context.WithCancel(t.Context())
	mounted := make(chan error, 1)
	go func() { mounted <- n.Mount(ctx, pod) }()
	for began := time.Now(); ; time.Sleep(time.Millisecond) {
		if _, err := os.Stat(log); err == nil {
			break
		}
		if time.Since(began) > time.Minute {
			t.Fatal("the helper was not started")
		}
	}
	cancel()
	select {
	case err := <-mounted:
		if err == nil || !strings.Contains(err.Error(), `the server "fd00::1" does not answer`) {
			t.Errorf("mounted: %v", err)
		}
	case <-time.After(time.Minute):
		t.Fatal("mounting goes on")
	}
	n.unmount(pod)
}

// A helper that has mounted the export, and has left something behind that holds its output, has
// succeeded.
func TestNFSWhoseHelperLeavesAProcess(t *testing.T) {
	n, pod, _ := newNFS(t, `mount -t tmpfs none "$2" && { sleep 5 & }`)
	n.mount(pod)
	all, err := n.Mounts(t.Context(), pod, &pod.Spec.Containers[0], nil)
	if err != nil || len(all) != 1 || all[0].SelinuxRelabel {
		t.Errorf("mounts %v, %v", all, err)
	}
	n.unmount(pod)
}
