package upstream

import (
	"context"
	"log/slog"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	toolscache "k8s.io/client-go/tools/cache"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/coracle-project/coracle/cluster/scheduler/framework"
)

// kinds and actions are upstream's as ours.
var (
	kinds = map[fwk.EventResource]framework.Kind{
		fwk.Node: framework.Node, fwk.Pod: framework.Pod,
		fwk.PersistentVolume: framework.Volume, fwk.PersistentVolumeClaim: framework.Claim, fwk.StorageClass: framework.Class,
		fwk.CSINode: framework.CSINode, fwk.CSIDriver: framework.CSIDriver, fwk.CSIStorageCapacity: framework.CSICapacity,
		fwk.VolumeAttachment: framework.Attachment,
		fwk.ResourceClaim:    framework.ResourceClaim, fwk.ResourceSlice: framework.ResourceSlice, fwk.DeviceClass: framework.DeviceClass,
	}
	actions = map[fwk.ActionType]framework.Action{
		fwk.Add: framework.Add, fwk.Delete: framework.Delete, fwk.Update: framework.Update,
		fwk.UpdateNodeLabel: framework.UpdateNodeLabel, fwk.UpdateNodeAllocatable: framework.UpdateNodeAllocatable,
		fwk.UpdatePodGeneratedResourceClaim: framework.UpdatePodClaims,
	}
)

// The hint of an event is upstream's function at the same place of its list, which an upgrade may
// change.
func TestEventsAreUpstreams(t *testing.T) {
	client := fake.NewClientset()
	h := &framework.Handle{
		Log: slog.New(slog.DiscardHandler), Kube: client, Informers: informers.NewSharedInformerFactory(client, 0),
		Background: func(f func(context.Context)) { f(t.Context()) },
		Moves:      func(framework.Kind) toolscache.ResourceEventHandler { return toolscache.ResourceEventHandlerFuncs{} },
	}
	volumes, limits, devices := NewVolumeBinding(h, time.Minute), NewNodeVolumeLimits(h), NewDynamicResources(h, time.Second, time.Minute)
	for _, pl := range []struct {
		*imported
		framework.Enqueuer
	}{{&volumes.imported, volumes}, {&limits.imported, limits}, {&devices.imported, devices}} {
		pl.gate.open(t.Context())
		made, err := pl.made(t.Context(), &v1.Pod{})
		if err != nil {
			t.Fatal(err)
		}
		ours := pl.Events()
		if len(ours) != len(made.hints) || len(ours) == 0 {
			t.Fatalf("%s: %d events, upstream %d", pl.name, len(ours), len(made.hints))
		}
		for i, hint := range made.hints {
			want := framework.Event{Kind: kinds[hint.Event.Resource]}
			for theirs, action := range actions {
				if hint.Event.ActionType&theirs == theirs {
					want.Action |= action
				}
			}
			if ours[i].Event != want {
				t.Errorf("%s: event %d is %+v, upstream's %+v (%+v)", pl.name, i, ours[i].Event, want, hint.Event)
			}
		}
	}
}
