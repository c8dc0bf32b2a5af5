package csi

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// failStage has NodeStageVolume end with a code, after it did what before does.
func failStage(d *fakeDriver, code codes.Code, before func()) {
	d.set(func(_ context.Context, call string) error {
		if call != "NodeStageVolume" {
			return nil
		}
		before()
		return status.Error(code, "no")
	})
}

// recorded says whether a staged volume has a record.
func (n *testNode) recorded(handle string) bool {
	n.t.Helper()
	_, err := os.Stat(filepath.Join(n.stageDir(driverName, handle), recordFile))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		n.t.Fatal(err)
	}
	return err == nil
}

// As upstream's kubelet: a call that is over in the driver has staged nothing, and one of which
// that is not known may have.
func TestOnlyWhatMayBeStagedIsUnstaged(t *testing.T) {
	for _, c := range []struct {
		name    string
		code    codes.Code
		leaves  bool // the driver leaves a mount
		restart bool // the stage before had no answer, and another kubelet asks again
		unstage int
	}{
		{"it may go on", codes.DeadlineExceeded, false, false, 1},
		{"it is over", codes.InvalidArgument, false, false, 0},
		{"it is over, and a mount is left", codes.Internal, true, false, 1},
		{"it is over, and an earlier kubelet's may not be", codes.InvalidArgument, false, true, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := newTestNode(t, unattached())
			d := newDriver(t, n.root, driverName).serve("a.sock")
			d.registered()
			s := n.spec(pod("p1"), persistent("pv1", "handle-1"))
			if c.restart {
				failStage(d, codes.Unavailable, func() {})
				if _, err := n.Mount(t.Context(), s); err == nil {
					t.Fatal("mounted")
				}
				// The pod's record keeps the next kubelet from unstaging at once.
				if err := writeRecord(s.Dir, record{Spec: "pv1", Handle: "handle-1", Driver: driverName}); err != nil {
					t.Fatal(err)
				}
				n.restart()
				d.registered()
			}
			failStage(d, c.code, func() {
				if c.leaves {
					if err := unix.Mount("tmpfs", filepath.Join(n.stageDir(driverName, "handle-1"), globalName), "tmpfs", 0, ""); err != nil {
						t.Error(err)
					}
				}
			})
			if _, err := n.Mount(t.Context(), s); codeOf(err) != c.code {
				t.Fatalf("mounted: %v", err)
			}
			if got := n.recorded("handle-1"); got != (c.unstage > 0) {
				t.Errorf("recorded: %v", got)
			}
			n.awaitUse("handle-1") // until the pod has gone
			n.unmount(s)
			n.awaitUse()
			if got := d.count("NodeUnstageVolume"); got != c.unstage {
				t.Errorf("unstaged %d times", got)
			}
			n.nothingLeft()
			d.set(nil)
			n.mount(s) // and again
			n.unmount(s)
			n.awaitUse()
			n.nothingLeft()
		})
	}
}

func TestAVolumeWhoseSecretIsMissingIsNotRecorded(t *testing.T) {
	n := newTestNode(t, unattached())
	d := newDriver(t, n.root, driverName).serve("a.sock")
	d.registered()
	pv := persistent("pv1", "handle-1")
	pv.Spec.CSI.NodeStageSecretRef = &v1.SecretReference{Namespace: "ns", Name: "missing"}
	s := n.spec(pod("p1"), pv)
	if _, err := n.Mount(t.Context(), s); err == nil {
		t.Fatal("mounted")
	}
	if n.recorded("handle-1") {
		t.Error("the driver has not been asked, and there is a record")
	}
	n.unmount(s)
	n.awaitUse()
	if d.count("NodeUnstageVolume") != 0 {
		t.Errorf("calls: %v", d.calls)
	}
	n.nothingLeft()
}

// As upstream's kubelet: what needs no attaching is not reported, and nothing detaches it.
func TestWhatIsNeverAttachedIsNotReported(t *testing.T) {
	n := newTestNode(t, unattached())
	d := newDriver(t, n.root, driverName).serve("a.sock")
	d.registered()
	s := n.spec(pod("p1"), persistent("pv1", "handle-1"))
	n.mount(s)
	reported := func(when string) {
		t.Helper()
		if got := n.VolumesInUse(); len(got) != 0 {
			t.Errorf("%s: reported %v", when, got)
		}
	}
	reported("mounted")
	n.restart()
	reported("after a restart")
	d.registered()
	n.unmount(s)
	n.awaitUse()
	n.nothingLeft()
}

// A driver's object that was made again does not tell whether a volume of before is attached.
func TestWhatWasAttachedStaysReported(t *testing.T) {
	n := newTestNode(t, &storagev1.VolumeAttachment{
		ObjectMeta: metav1.ObjectMeta{Name: attachmentName("handle-1", driverName, "n1")},
		Spec:       storagev1.VolumeAttachmentSpec{Attacher: driverName, NodeName: "n1"},
		Status:     storagev1.VolumeAttachmentStatus{Attached: true},
	})
	n.listAttached("handle-1")
	d := newDriver(t, n.root, driverName).serve("a.sock")
	d.registered()
	pv := persistent("pv1", "handle-1")
	first, second := n.spec(pod("p1"), pv), n.spec(pod("p2"), pv)
	n.mount(first)
	if err := n.kube.Tracker().Add(unattached()); err != nil {
		t.Fatal(err)
	}
	n.mount(second)
	for range 2 {
		if got := n.VolumesInUse(); !slices.Equal(got, []v1.UniqueVolumeName{uniqueName(driverName, "handle-1")}) {
			t.Errorf("reported %v", got)
		}
		n.restart()
		d.registered()
	}
	n.unmount(first)
	n.unmount(second)
	n.awaitUse()
	n.nothingLeft()
}
