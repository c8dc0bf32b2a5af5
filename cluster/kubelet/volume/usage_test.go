package volume

import (
	"bytes"
	"context"
	"os"
	"testing"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/coracle-project/coracle/cluster/kubelet/volume/layout"
)

func TestUsage(t *testing.T) {
	n := newNode(t)
	host := t.TempDir()
	limit := resource.MustParse("1Mi")
	pod := podWith(vol("disk", v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}),
		vol("memory", v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{Medium: v1.StorageMediumMemory, SizeLimit: &limit}}),
		vol("host", v1.VolumeSource{HostPath: &v1.HostPathVolumeSource{Path: host}}))
	if got := n.Usage(context.Background(), pod); len(got) != 0 {
		t.Error("before they are made:", got)
	}
	n.mount(pod)
	disk := n.path(pod, layout.VolumesDir, layout.PluginEmptyDir, "disk")
	memory := n.path(pod, layout.VolumesDir, layout.PluginEmptyDir, "memory")
	megabyte := bytes.Repeat([]byte("x"), 1<<20)
	for _, err := range []error{
		os.WriteFile(host+"/large", bytes.Repeat(megabyte, 4), 0o600), os.MkdirAll(disk+"/a/b", 0o700), os.Mkdir(disk+"/m", 0o700),
		os.WriteFile(disk+"/a/b/f", megabyte, 0o600), os.Link(disk+"/a/b/f", disk+"/again"), os.Symlink(host, disk+"/link"),
		unix.Mount(host, disk+"/m", "", unix.MS_BIND, ""), os.WriteFile(memory+"/f", megabyte[:8192], 0o600),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	got := n.Usage(context.Background(), pod)
	if len(got) != 2 || got[0].Name != "disk" || got[1].Name != "memory" {
		t.Fatal(got)
	}
	// The volume, a, b, m, f and link.
	if used := *got[0].UsedBytes; used < 1<<20 || used > 1<<20+64<<10 || *got[0].InodesUsed != 6 {
		t.Errorf("%d bytes in %d inodes", used, *got[0].InodesUsed)
	}
	if *got[1].UsedBytes != 8192 || *got[1].CapacityBytes != 1<<20 {
		t.Errorf("%d of %d bytes", *got[1].UsedBytes, *got[1].CapacityBytes)
	}
	n.unmount(pod)
	if _, err := os.Stat(host + "/large"); err != nil {
		t.Error(err)
	}
}
