package csi

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	k8stesting "k8s.io/client-go/testing"

	"github.com/coracle-project/coracle/cluster/kubelet/csi/client"
)

var conflict = apierrors.NewConflict(schema.GroupResource{Resource: "csinodes"}, "n1", nil)

// growing is a volume of 1Gi that was mounted and is to have 2Gi now.
func growing(t *testing.T) (*testNode, *fakeDriver, *v1.PersistentVolume) {
	t.Helper()
	pv := persistent("pv1", "handle-1")
	claim := &v1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "claim-pv1", UID: "claim-pv1"},
		Status: v1.PersistentVolumeClaimStatus{
			Phase:    v1.ClaimBound,
			Capacity: v1.ResourceList{v1.ResourceStorage: resource.MustParse("1Gi")},
		},
	}
	n := newTestNode(t, unattached(), pv, claim)
	d := newDriver(t, n.root, driverName)
	d.can = append(d.can, csipb.NodeServiceCapability_RPC_EXPAND_VOLUME)
	d.serve("a.sock").registered()
	return n, d, pv
}

// grow has the API ask for 2Gi.
func (n *testNode) growTo2Gi(pv *v1.PersistentVolume) {
	n.t.Helper()
	bigger := pv.DeepCopy()
	bigger.Spec.Capacity[v1.ResourceStorage] = resource.MustParse("2Gi")
	if _, err := n.kube.CoreV1().PersistentVolumes().Update(n.t.Context(), bigger, metav1.UpdateOptions{}); err != nil {
		n.t.Fatal(err)
	}
	claim := n.claim()
	claim.Spec.Resources.Requests = v1.ResourceList{v1.ResourceStorage: resource.MustParse("2Gi")}
	claim.Status.AllocatedResourceStatuses = map[v1.ResourceName]v1.ClaimResourceStatus{
		v1.ResourceStorage: v1.PersistentVolumeClaimNodeResizePending,
	}
	claim.Status.Conditions = []v1.PersistentVolumeClaimCondition{{
		Type:   v1.PersistentVolumeClaimFileSystemResizePending,
		Status: v1.ConditionTrue,
	}}
	if _, err := n.kube.CoreV1().PersistentVolumeClaims("ns").Update(n.t.Context(), claim, metav1.UpdateOptions{}); err != nil {
		n.t.Fatal(err)
	}
}

func (n *testNode) claim() *v1.PersistentVolumeClaim {
	n.t.Helper()
	claim, err := n.kube.CoreV1().PersistentVolumeClaims("ns").Get(n.t.Context(), "claim-pv1", metav1.GetOptions{})
	if err != nil {
		n.t.Fatal(err)
	}
	return claim
}

func TestAMountedVolumeGrows(t *testing.T) {
	n, d, pv := growing(t)
	s := n.spec(pod("p1"), pv)
	path := n.mount(s)
	if err := n.Keep(t.Context(), s); err != nil || d.count("NodeExpandVolume") != 0 {
		t.Errorf("nothing is to grow: %v, %v", d.calls, err)
	}
	n.growTo2Gi(pv)
	if err := n.Keep(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	if d.expand.VolumePath != path || d.expand.StagingTargetPath == "" || d.expand.CapacityRange.RequiredBytes != 2<<30 {
		t.Errorf("told %v", d.expand)
	}
	claim := n.claim()
	if claim.Status.Capacity.Storage().String() != "2Gi" || len(claim.Status.AllocatedResourceStatuses) != 0 ||
		len(claim.Status.Conditions) != 0 {
		t.Errorf("claim: %+v", claim.Status)
	}
	if err := n.Keep(t.Context(), s); err != nil || d.count("NodeExpandVolume") != 1 {
		t.Errorf("again: %v, %v", d.calls, err)
	}
	if len(n.events.Events) != 2 { // the pod's and the claim's
		t.Errorf("%d events", len(n.events.Events))
	}
	n.unmount(s)
	n.awaitUse()
}

// A kubelet is killed while the driver grows a volume. The claim does not change afterwards.
func TestAGrowthIsResumedByTheNextKubelet(t *testing.T) {
	n, d, pv := growing(t)
	s := n.spec(pod("p1"), pv)
	n.mount(s)
	if n.KeepEvery(s) != 0 {
		t.Error("a volume that was just mounted is kept without a reason")
	}
	n.growTo2Gi(pv)
	claim := n.claim()
	claim.Status.AllocatedResourceStatuses[v1.ResourceStorage] = v1.PersistentVolumeClaimNodeResizeInProgress
	if _, err := n.kube.CoreV1().PersistentVolumeClaims("ns").Update(t.Context(), claim, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	n.restart()
	d.registered()
	n.mount(s)
	if n.KeepEvery(s) != firstKeep {
		t.Error("the volume is not kept soon")
	}
	if err := n.Keep(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	if claim := n.claim(); d.count("NodeExpandVolume") != 1 || len(claim.Status.AllocatedResourceStatuses) != 0 || n.KeepEvery(s) != 0 {
		t.Errorf("after %v: %+v, kept every %v", d.calls, claim.Status, n.KeepEvery(s))
	}
	n.unmount(s)
	n.awaitUse()
}

func TestAVolumeThatGrewWhileItWasNotMounted(t *testing.T) {
	n, d, pv := growing(t)
	n.growTo2Gi(pv)
	s := n.spec(pod("p1"), pv)
	n.mount(s)
	if d.count("NodeExpandVolume") != 1 || n.claim().Status.Capacity.Storage().String() != "2Gi" {
		t.Errorf("calls %v, claim %+v", d.calls, n.claim().Status)
	}
	n.unmount(s)
	n.awaitUse()
}

func TestAReadOnlyVolumeDoesNotGrow(t *testing.T) {
	n, d, pv := growing(t)
	n.growTo2Gi(pv)
	s := n.spec(pod("p1"), pv)
	s.ReadOnly = true
	n.mount(s)
	if err := n.Keep(t.Context(), s); err != nil || d.count("NodeExpandVolume") != 0 {
		t.Errorf("calls %v, %v", d.calls, err)
	}
	s.ReadOnly = false
	if err := n.Keep(t.Context(), s); err != nil || d.count("NodeExpandVolume") != 1 {
		t.Errorf("writable: calls %v, %v", d.calls, err)
	}
	n.unmount(s)
	n.awaitUse()
}

func TestAGrowthThatFails(t *testing.T) {
	for _, c := range []struct {
		code   codes.Code
		status v1.ClaimResourceStatus
		again  int
	}{
		{codes.OutOfRange, v1.PersistentVolumeClaimNodeResizeInfeasible, 1},
		{codes.FailedPrecondition, v1.PersistentVolumeClaimNodeResizeInProgress, 1},
		{codes.Internal, v1.PersistentVolumeClaimNodeResizeInProgress, 2},
	} {
		n, d, pv := growing(t)
		s := n.spec(pod("p1"), pv)
		n.mount(s)
		n.growTo2Gi(pv)
		d.set(func(_ context.Context, call string) error {
			if call == "NodeExpandVolume" {
				return status.Error(c.code, "no")
			}
			return nil
		})
		if err := n.Keep(t.Context(), s); client.CodeOf(err) != c.code {
			t.Errorf("%s: error %v", c.code, err)
		}
		if got := n.claim().Status; got.AllocatedResourceStatuses[v1.ResourceStorage] != c.status || got.Capacity.Storage().String() != "1Gi" {
			t.Errorf("%s: claim %+v", c.code, got)
		}
		_ = n.Keep(t.Context(), s)
		if got := d.count("NodeExpandVolume"); got != c.again {
			t.Errorf("%s: %d calls, want %d", c.code, got, c.again)
		}
		if len(n.events.Events) == 0 {
			t.Errorf("%s: no event", c.code)
		}
		n.unmount(s)
		n.awaitUse()
	}
}

// The claim cannot be written when its growth is refused. It is written at the next try.
func TestARefusedGrowthIsToldTheClaimInTheEnd(t *testing.T) {
	n, d, pv := growing(t)
	s := n.spec(pod("p1"), pv)
	n.mount(s)
	n.growTo2Gi(pv)
	var refused, failed atomic.Bool
	d.set(func(_ context.Context, call string) error {
		if call == "NodeExpandVolume" {
			refused.Store(true)
			return status.Error(codes.OutOfRange, "no")
		}
		return nil
	})
	n.react("patch", "persistentvolumeclaims", func(k8stesting.Action) (bool, runtime.Object, error) {
		if refused.Load() && failed.CompareAndSwap(false, true) {
			return true, nil, apierrors.NewTimeoutError("no answer", 0)
		}
		return false, nil, nil
	})
	if err := n.Keep(t.Context(), s); !failed.Load() || client.CodeOf(err) != codes.OutOfRange {
		t.Fatalf("the claim was written: %v", err)
	}
	_ = n.Keep(t.Context(), s)
	if got := n.claim().Status.AllocatedResourceStatuses[v1.ResourceStorage]; got != v1.PersistentVolumeClaimNodeResizeInfeasible {
		t.Errorf("status %q", got)
	}
	n.unmount(s)
	n.awaitUse()
}

// The owner asks for less after a growth has failed. The next failure hands the volume back to the
// controller, whatever its code.
func TestAGrowthIsTriedAgainForAClaimThatAsksForLess(t *testing.T) {
	for _, code := range []codes.Code{codes.FailedPrecondition, codes.Internal} {
		n, d, pv := growing(t)
		s := n.spec(pod("p1"), pv)
		n.mount(s)
		n.growTo2Gi(pv)
		d.set(func(_ context.Context, call string) error {
			if call == "NodeExpandVolume" {
				return status.Error(code, "no")
			}
			return nil
		})
		if err := n.Keep(t.Context(), s); client.CodeOf(err) != code {
			t.Errorf("%s: error %v", code, err)
		}
		if got := n.claim().Status.AllocatedResourceStatuses[v1.ResourceStorage]; got != v1.PersistentVolumeClaimNodeResizeInProgress {
			t.Errorf("%s: status %q", code, got)
		}
		claim := n.claim()
		claim.Spec.Resources.Requests[v1.ResourceStorage] = resource.MustParse("1536Mi")
		if _, err := n.kube.CoreV1().PersistentVolumeClaims(claim.Namespace).Update(t.Context(), claim, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		if err := n.Keep(t.Context(), s); client.CodeOf(err) != code {
			t.Errorf("%s: error for another request: %v", code, err)
		}
		if got := n.claim().Status.AllocatedResourceStatuses[v1.ResourceStorage]; got != v1.PersistentVolumeClaimNodeResizeInfeasible {
			t.Errorf("%s: status for another request: %q", code, got)
		}
		_ = n.Keep(t.Context(), s)
		if got := d.count("NodeExpandVolume"); got != 2 {
			t.Errorf("%s: %d calls, want 2", code, got)
		}
		n.unmount(s)
		n.awaitUse()
	}
}

func TestWhatVolumesTake(t *testing.T) {
	n := newTestNode(t, unattached())
	d := newDriver(t, n.root, driverName)
	d.can = append(d.can, csipb.NodeServiceCapability_RPC_GET_VOLUME_STATS, csipb.NodeServiceCapability_RPC_VOLUME_CONDITION)
	d.serve("a.sock").registered()
	s := n.spec(pod("p1"), persistent("pv1", "handle-1"))
	n.mount(s)
	got, ok := n.Usage(t.Context(), s)
	if !ok || *got.CapacityBytes != 100 || *got.UsedBytes != 30 || *got.InodesUsed != 0 || !got.VolumeHealthStats.Abnormal {
		t.Errorf("%+v, %v", got, ok)
	}
	if event := <-n.events.Events; !strings.Contains(event, "VolumeConditionAbnormal") || !strings.Contains(event, "a disk is broken") {
		t.Errorf("event: %s", event)
	}
	if _, ok := n.Usage(t.Context(), s); !ok || d.count("NodeGetVolumeStats") != 1 {
		t.Errorf("asked again: %v", d.calls)
	}
	n.unmount(s)
	n.awaitUse()
}

func TestADriverThatHangsHasNoFigures(t *testing.T) {
	n := newTestNode(t, unattached())
	d := newDriver(t, n.root, driverName)
	d.can = append(d.can, csipb.NodeServiceCapability_RPC_GET_VOLUME_STATS)
	d.serve("a.sock").registered()
	stuck, other := n.spec(pod("p1"), persistent("pv1", "handle-1")), n.spec(pod("p2"), persistent("pv2", "handle-2"))
	n.mount(stuck)
	n.mount(other)
	hanging := make(chan struct{}, 10)
	d.set(func(ctx context.Context, call string) error {
		if call == "NodeGetVolumeStats" {
			hanging <- struct{}{}
			<-ctx.Done()
		}
		return ctx.Err()
	})
	began := time.Now()
	if _, ok := n.Usage(t.Context(), stuck); ok || time.Since(began) > client.CallTimeout/2 {
		t.Errorf("figures %v after %v", ok, time.Since(began))
	}
	<-hanging
	n.usages.patience = time.Hour // no caller waits for this driver again
	if _, ok := n.Usage(t.Context(), other); ok {
		t.Error("figures of a driver that hangs")
	}
	<-hanging
	n.usages.mu.Lock()
	delete(n.usages.known, other.State)
	clear(n.usages.late)
	n.usages.mu.Unlock()
	d.set(nil)
	if _, ok := n.Usage(t.Context(), other); !ok {
		t.Error("the other volume has no figures")
	}
	if _, ok := n.Usage(t.Context(), stuck); ok || len(hanging) > 0 {
		t.Error("the driver was asked twice at once")
	}
	n.unmount(stuck)
	n.unmount(other)
	n.awaitUse()
}

// Regression: a growth that failed when a pod mounted the volume was not tried again if the claim
// said already that it was in progress: nothing changed that would have told of it.
func TestAGrowthThatFailsAtTheMountIsTriedAgain(t *testing.T) {
	n, d, pv := growing(t)
	n.growTo2Gi(pv)
	claim := n.claim()
	claim.Status.AllocatedResourceStatuses[v1.ResourceStorage] = v1.PersistentVolumeClaimNodeResizeInProgress
	if _, err := n.kube.CoreV1().PersistentVolumeClaims("ns").Update(t.Context(), claim, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	d.set(func(_ context.Context, call string) error {
		if call == "NodeExpandVolume" && d.count(call) == 1 {
			return status.Error(codes.Unavailable, "not yet")
		}
		return nil
	})
	s := n.spec(pod("p1"), pv)
	n.mount(s)
	if every := n.KeepEvery(s); every == 0 {
		t.Error("the volume is not kept again")
	}
	if err := n.Keep(t.Context(), s); err != nil {
		t.Error(err)
	}
	if got := n.claim().Status.Capacity.Storage().String(); got != "2Gi" || d.count("NodeExpandVolume") != 2 {
		t.Errorf("the claim has %s after %d calls", got, d.count("NodeExpandVolume"))
	}
	n.unmount(s)
	n.awaitUse()
}
