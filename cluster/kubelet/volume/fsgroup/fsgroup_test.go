package fsgroup

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/coracle-project/coracle/cluster/kubelet/internal/volumetest"
)

// What has the group at its root has it everywhere: a walk that was cut off is done again.
func TestAGroupThatWasNotGivenToAll(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(dir+"/sub", 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", dir+"/sub", "tmpfs", unix.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir+"/sub", unix.MNT_DETACH) })
	pod := &v1.Pod{Spec: v1.PodSpec{SecurityContext: &v1.PodSecurityContext{
		FSGroup: ptr.To[int64](4242), FSGroupChangePolicy: ptr.To(v1.FSGroupChangeOnRootMismatch),
	}}}
	if err := Give(t.Context(), dir, pod); !errors.Is(err, unix.EROFS) {
		t.Fatal("the walk was not cut off:", err)
	}
	if err := unix.Unmount(dir+"/sub", 0); err != nil {
		t.Fatal(err)
	}
	volumetest.Write(t, dir+"/sub/file", "x")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := Give(ctx, dir, pod); !errors.Is(err, context.Canceled) {
		t.Error("the walk does not end with its context:", err)
	}
	if err := Give(t.Context(), dir, pod); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{dir, dir + "/sub", dir + "/sub/file"} {
		if gid, _ := volumetest.GroupOf(t, path); gid != 4242 {
			t.Errorf("%s belongs to group %d", path, gid)
		}
	}
}

// Files that another pod removes while the group is given are no errors.
func TestFilesThatGoWhileTheGroupIsGiven(t *testing.T) {
	const files = 3000
	tried := func() bool {
		dir := t.TempDir()
		for i := range files {
			volumetest.Write(t, fmt.Sprintf("%s/%04d", dir, i), "")
		}
		first, last := dir+"/0000", fmt.Sprintf("%s/%04d", dir, files-1)
		root, err := os.OpenRoot(dir)
		if err != nil {
			t.Fatal(err)
		}
		defer root.Close()
		given := make(chan error, 1)
		go func() { given <- Set(t.Context(), root, ptr.To[int64](4242), ReadWrite) }()
		for late := time.Now().Add(time.Minute); ; {
			if gid, _ := volumetest.GroupOf(t, first); gid == 4242 {
				break
			}
			if time.Now().After(late) {
				t.Fatal("nothing is given")
			}
		}
		gid, _ := volumetest.GroupOf(t, last)
		if err := os.Remove(last); err != nil {
			t.Fatal(err)
		}
		if err := <-given; err != nil {
			t.Error(err)
		}
		if gid, _ := volumetest.GroupOf(t, dir); gid != 4242 {
			t.Errorf("the volume belongs to group %d", gid)
		}
		return gid != 4242
	}
	for late := time.Now().Add(time.Minute); !tried(); { // the walk may have been faster
		if time.Now().After(late) {
			t.Fatal("the walk is always faster: nothing is tested")
		}
	}
}
