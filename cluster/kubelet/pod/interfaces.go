package pod

import (
	"context"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/coracle-project/coracle/cluster/kubelet/pod/criconfig"
)

// Volumes makes a pod's volumes under the kubelet's root directory (pods/UID/volumes/…, upstream's
// layout) and keeps their contents up to date. All methods are safe for concurrent use, are
// idempotent, and answer the same after a restart of the kubelet: what is mounted is found on disk.
type Volumes interface {
	criconfig.Volumes // once Mount has succeeded
	// Mount makes every volume of the pod that is not mounted yet, and starts to keep all of them
	// up to date (config maps, secrets, downward API, tokens) until Unmount. Called before the
	// pod's first container is made, and again for every pod that runs when the kubelet starts. An
	// error is in upstream's words, fit for a FailedMount event ("MountVolume.SetUp failed for
	// volume \"x\" : configmap \"y\" not found"), and leads to another call after a back-off, or at
	// once when Options.Wake(uid) is called because what was missing has come.
	Mount(ctx context.Context, pod *v1.Pod) error
	// Refresh looks at a changed pod object (labels and annotations in downward API volumes). What
	// fails is tried again by itself.
	Refresh(ctx context.Context, pod *v1.Pod) error
	// Stopped is told that no container of the pod runs any more, if its end goes on for another
	// reason: a pod of the same name may have its volumes now. Unmount says so, too.
	Stopped(uid types.UID)
	// Unmount removes all of the pod's volumes; none of its containers runs any more.
	Unmount(ctx context.Context, uid types.UID) error
}
