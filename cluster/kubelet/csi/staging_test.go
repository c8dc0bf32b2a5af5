package csi

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/coracle-project/coracle/cluster/kubelet/csi/client"
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
	_, err := os.Stat(filepath.Join(n.places.stageDir(driverName, handle), recordFile))
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
					if err := unix.Mount("tmpfs", filepath.Join(n.places.stageDir(driverName, "handle-1"), globalName), "tmpfs", 0, ""); err != nil {
						t.Error(err)
					}
				}
			})
			if _, err := n.Mount(t.Context(), s); client.CodeOf(err) != c.code {
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

func TestAVolumeWithoutAPlaceIsNotRecorded(t *testing.T) {
	n := newTestNode(t, unattached())
	d := newDriver(t, n.root, driverName).serve("a.sock")
	d.registered()
	place := filepath.Join(n.places.stageDir(driverName, "handle-1"), globalName)
	if err := errors.Join(os.MkdirAll(filepath.Dir(place), 0o750), os.WriteFile(place, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	s := n.spec(pod("p1"), persistent("pv1", "handle-1"))
	if _, err := n.Mount(t.Context(), s); !errors.Is(err, unix.ENOTDIR) {
		t.Fatalf("mounted: %v", err)
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
		if got := n.VolumesInUse(nil); len(got) != 0 {
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

// attached makes the API have a volume as attached.
func (n *testNode) attached(handle string) {
	n.t.Helper()
	if err := n.kube.Tracker().Add(&storagev1.VolumeAttachment{
		ObjectMeta: metav1.ObjectMeta{Name: attachmentName(handle, driverName, "n1")},
		Spec:       storagev1.VolumeAttachmentSpec{Attacher: driverName, NodeName: "n1"},
		Status:     storagev1.VolumeAttachmentStatus{Attached: true},
	}); err != nil {
		n.t.Fatal(err)
	}
	n.listAttached(handle)
}

// A driver's object that was made again does not tell whether a volume of before is attached.
func TestWhatWasAttachedStaysReported(t *testing.T) {
	n := newTestNode(t)
	n.attached("handle-1")
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
		if got := n.VolumesInUse(nil); !slices.Equal(got, []v1.UniqueVolumeName{uniqueName(driverName, "handle-1")}) {
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

// Regression: a volume whose record could not be read was not in use any more, and could be
// detached while it was mounted.
func TestAStagedVolumeWhoseRecordIsDamaged(t *testing.T) {
	name, other := uniqueName(driverName, "handle-1"), uniqueName(driverName, "handle-2")
	for _, block := range []bool{false, true} {
		t.Run(map[bool]string{false: "files", true: "block"}[block], func(t *testing.T) {
			n := newTestNode(t)
			n.attached("handle-1")
			d := newDriver(t, n.root, driverName).serve("a.sock")
			d.registered()
			d.set(func(_ context.Context, call string) error {
				if call == "NodeUnstageVolume" {
					return status.Error(codes.Internal, "busy")
				}
				return nil
			})
			pv, dir := persistent("pv1", "handle-1"), n.places.stageDir(driverName, "handle-1")
			if block {
				pv.Spec.VolumeMode, dir = ptr.To(v1.PersistentVolumeBlock), n.places.blockDir("pv1")
			}
			s := n.spec(pod("p1"), pv)
			n.mount(s)
			n.unmount(s)
			raw, err := os.ReadFile(filepath.Join(dir, recordFile))
			if err == nil {
				err = os.WriteFile(filepath.Join(dir, recordFile), raw[:len(raw)/2], 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
			n.restart()
			if event := <-n.events.Events; !strings.Contains(event, dir) {
				t.Errorf("event: %s", event)
			}
			use := func(known, want []v1.UniqueVolumeName) {
				t.Helper()
				if got := n.VolumesInUse(known); !slices.Equal(got, want) {
					t.Errorf("in use: %v, want %v", got, want)
				}
			}
			use(nil, nil)
			if block { // it may be each of them
				use([]v1.UniqueVolumeName{name, other}, []v1.UniqueVolumeName{name, other})
				if err := os.RemoveAll(filepath.Dir(dir)); err != nil {
					t.Fatal(err)
				}
				use([]v1.UniqueVolumeName{name, other}, nil)
				return
			}
			use([]v1.UniqueVolumeName{name, other}, []v1.UniqueVolumeName{name})
			d.set(nil)
			n.awaitUse()
			use([]v1.UniqueVolumeName{name}, nil)
			n.nothingLeft()
		})
	}
}

// A pod that has the volume of a damaged record makes it whole.
func TestADamagedRecordIsWrittenAgain(t *testing.T) {
	n := newTestNode(t)
	n.attached("handle-1")
	d := newDriver(t, n.root, driverName).serve("a.sock")
	d.registered()
	dir := n.places.stageDir(driverName, "handle-1")
	if err := os.MkdirAll(dir, 0o750); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, recordFile), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	n.restart()
	d.registered()
	s := n.spec(pod("p1"), persistent("pv1", "handle-1"))
	n.mount(s)
	n.restart()
	d.registered()
	if got := n.VolumesInUse(nil); len(got) != 1 {
		t.Errorf("in use: %v", got)
	}
	n.unmount(s)
	n.awaitUse()
	n.nothingLeft()
}
