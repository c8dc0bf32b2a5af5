package csi

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
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
