package volume

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/coracle-project/coracle/cluster/kubelet/internal/volumetest"
	"github.com/coracle-project/coracle/cluster/kubelet/volume/layout"
)

// shareDisk mounts a file system on dir whose mounts others receive, as on most hosts.
func shareDisk(t *testing.T, dir string) {
	t.Helper()
	mountOn(t, dir)
	if err := unix.Mount("", dir, "", unix.MS_SHARED, ""); err != nil {
		t.Fatal(err)
	}
}

func mountOn(t *testing.T, dir string) {
	t.Helper()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=1m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
}

// mountNested mounts a file system with a file below the path of a volume. It is of the host, so
// only the host may take it away.
func mountNested(t *testing.T, volume string) (file string) {
	t.Helper()
	nested := filepath.Join(volume, "nested")
	if err := os.Mkdir(nested, 0o755); err != nil {
		t.Fatal(err)
	}
	mountOn(t, nested)
	volumetest.Write(t, nested+"/file", "the host's")
	return nested + "/file"
}

// wantPropagation wants the mount on target to be both a peer of pods' mounts and a slave of the
// host's.
func wantPropagation(t *testing.T, target string) {
	t.Helper()
	table, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range bytes.Lines(table) {
		if strings.Contains(string(line), " "+target+" ") {
			if !bytes.Contains(line, []byte(" shared:")) || !bytes.Contains(line, []byte(" master:")) {
				t.Errorf("propagation of the mount: %s", line)
			}
			return
		}
	}
	t.Error(target, "is not mounted")
}

// What is mounted on the host below a volume is seen in the pod, and stays on the host when the pod
// ends. A plain bind mount takes it away.
func TestMountsOfTheHostBelowAVolume(t *testing.T) {
	t.Run("bound as it is", func(t *testing.T) {
		disk, copied := t.TempDir(), t.TempDir()
		shareDisk(t, disk)
		if err := unix.Mount(disk, copied, "", unix.MS_BIND, ""); err != nil {
			t.Fatal(err)
		}
		file := mountNested(t, disk)
		if err := unix.Unmount(copied, unix.MNT_DETACH); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(file); err == nil {
			t.Error("it stays: this test proves nothing")
		}
	})
	t.Run("local", func(t *testing.T) {
		n, disk, pod := newBound(t, nil)
		shareDisk(t, disk)
		n.mount(pod)
		target := n.path(pod, layout.VolumesDir, pluginLocal, "pv-data")
		wantPropagation(t, target)
		file := mountNested(t, disk)
		wantFile(t, target+"/nested/file", "the host's")
		n.unmount(pod)
		wantFile(t, file, "the host's")
	})
	t.Run("bound before, and not ready", func(t *testing.T) {
		n, disk, pod := newBound(t, nil)
		shareDisk(t, disk)
		target := n.path(pod, layout.VolumesDir, pluginLocal, "pv-data")
		if err := os.MkdirAll(target, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := unix.Mount(disk, target, "", unix.MS_BIND, ""); err != nil {
			t.Fatal(err)
		}
		n.mount(pod)
		wantPropagation(t, target)
		file := mountNested(t, disk)
		n.unmount(pod)
		wantFile(t, file, "the host's")
	})
	t.Run("subPath of a hostPath", func(t *testing.T) {
		n, disk := newNode(t), t.TempDir()
		shareDisk(t, disk)
		pod := podWith(vol("data", v1.VolumeSource{HostPath: &v1.HostPathVolumeSource{Path: disk}}))
		pod.Spec.Containers[0].VolumeMounts[0].SubPath = "sub"
		n.mount(pod)
		paths, _ := n.mounts(pod)
		wantPropagation(t, paths[0])
		file := mountNested(t, disk+"/sub")
		wantFile(t, paths[0]+"/nested/file", "the host's")
		n.unmount(pod)
		wantFile(t, file, "the host's")
	})
}
