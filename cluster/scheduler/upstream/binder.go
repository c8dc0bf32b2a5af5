package upstream

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/component-helpers/storage/ephemeral"
	"k8s.io/component-helpers/storage/volume"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/volumebinding"

	"github.com/coracle-project/coracle/cluster/scheduler/framework"
)

// binder is upstream's, but it learns from events when volumes are bound. Upstream's looks once a
// second, the first time after a second: as long as each pod with a new volume would wait, however
// soon it is there.
//
// Upstream's is told to wait for no time at all. It then makes its changes to volumes and claims
// and returns that the time is over; what it would have waited for is in state.
type binder struct {
	volumebinding.SchedulerVolumeBinder
	h        *framework.Handle
	patience time.Duration

	mu      sync.Mutex
	waiting map[string]map[*binding]bool // by claim
}

// binding is a pod that waits for its volumes.
type binding struct {
	node   string
	claims map[string]claimed // by key

	mu   sync.Mutex
	lost error         // a volume was taken away again
	wake chan struct{} // of one place
}

// claimed is a claim of a pod.
type claimed struct {
	uid types.UID
	// provisioned is that a volume is made for it, and before the version that the scheduler
	// changed to ask for that. Others have a volume already, or are given one.
	provisioned bool
	before      string
}

// noTime is how upstream's binder says that it has waited in vain; what it does before gives other
// errors.
const noTime = "binding volumes: "

func newBinder(h *framework.Handle, upstreams volumebinding.SchedulerVolumeBinder, patience time.Duration) (*binder, error) {
	b := &binder{SchedulerVolumeBinder: upstreams, h: h, patience: patience, waiting: make(map[string]map[*binding]bool)}
	core := h.Informers.Core().V1()
	_, claims := core.PersistentVolumeClaims().Informer().AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		UpdateFunc: func(_, claim any) { b.claimChanged(claim) }, DeleteFunc: b.claimChanged,
	})
	_, volumes := core.PersistentVolumes().Informer().AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc: func(pv any) { b.volumeChanged(nil, pv) }, UpdateFunc: b.volumeChanged,
		DeleteFunc: func(pv any) { b.volumeChanged(pv, nil) },
	})
	_, nodes := core.Nodes().Informer().AddEventHandler(toolscache.ResourceEventHandlerFuncs{DeleteFunc: func(any) { b.wakeAll() }})
	return b, errors.Join(claims, volumes, nodes)
}

// BindPodVolumes asks for the pod's volumes and waits until all are bound.
func (b *binder) BindPodVolumes(ctx context.Context, pod *v1.Pod, volumes *volumebinding.PodVolumes) error {
	w := &binding{node: pod.Spec.NodeName, claims: make(map[string]claimed), wake: make(chan struct{}, 1)}
	for i := range pod.Spec.Volumes {
		name := claimOf(pod, &pod.Spec.Volumes[i])
		if name == "" {
			continue
		}
		claim, err := b.h.Informers.Core().V1().PersistentVolumeClaims().Lister().PersistentVolumeClaims(pod.Namespace).Get(name)
		if err != nil {
			return err
		}
		w.claims[key(claim)] = claimed{uid: claim.UID}
	}
	for _, p := range volumes.DynamicProvisions {
		w.claims[key(p.PVC)] = claimed{uid: p.PVC.UID, provisioned: true, before: p.PVC.ResourceVersion}
	}
	b.add(w) // before anything changes, so that no event is missed
	defer b.remove(w)
	err := b.SchedulerVolumeBinder.BindPodVolumes(ctx, pod, volumes)
	if err == nil || !errors.Is(err, context.DeadlineExceeded) || ctx.Err() != nil || !strings.HasPrefix(err.Error(), noTime) {
		return err
	}
	soon, cancel := context.WithTimeout(ctx, b.patience)
	defer cancel()
	for {
		pending, err := b.state(w)
		if err != nil || pending == "" {
			return err
		}
		select {
		case <-w.wake:
		case <-soon.Done():
			if ctx.Err() == nil {
				return fmt.Errorf("binding volumes: %s for %s", pending, b.patience)
			}
			return fmt.Errorf("binding volumes: %w", context.Cause(ctx))
		}
	}
}

// claimOf returns the name of the claim that a volume of pod needs, "" if none.
func claimOf(pod *v1.Pod, v *v1.Volume) string {
	switch {
	case v.PersistentVolumeClaim != nil:
		return v.PersistentVolumeClaim.ClaimName
	case v.Ephemeral != nil:
		return ephemeral.VolumeClaimName(pod, v)
	}
	return ""
}

// state says for what the pod waits yet, nothing if all its claims are bound, or why that will not
// come to be.
func (b *binder) state(w *binding) (pending string, err error) {
	w.mu.Lock()
	err = w.lost
	w.mu.Unlock()
	if err != nil {
		return "", err
	}
	node, err := b.h.Informers.Core().V1().Nodes().Lister().Get(w.node)
	if err != nil {
		return "", fmt.Errorf("look up node %s: %w", w.node, err)
	}
	for k, c := range w.claims {
		bound, err := b.bound(k, c, node)
		if err != nil {
			return "", err
		}
		if !bound {
			pending = "claim " + k + " has had no volume"
		}
	}
	return pending, nil
}

// bound says whether a claim has a volume that can be reached from node, or why it will not have
// one.
func (b *binder) bound(k string, c claimed, node *v1.Node) (bool, error) {
	core := b.h.Informers.Core().V1()
	namespace, name, _ := strings.Cut(k, "/")
	claim, err := core.PersistentVolumeClaims().Lister().PersistentVolumeClaims(namespace).Get(name)
	switch {
	case err != nil:
		return false, fmt.Errorf("look up claim %s: %w", k, err)
	case claim.UID != c.uid:
		return false, fmt.Errorf("claim %s was deleted and made again", k)
	case c.provisioned && claim.ResourceVersion == c.before:
		return false, nil // the informer does not have the change yet
	case c.provisioned && claim.Annotations[volume.AnnSelectedNode] != node.Name:
		return false, fmt.Errorf("provisioning failed for PVC %q", claim.Name)
	case claim.Spec.VolumeName == "":
		return false, nil
	}
	pv, err := core.PersistentVolumes().Lister().Get(claim.Spec.VolumeName)
	switch {
	case apierrors.IsNotFound(err):
		return false, nil
	case err != nil:
		return false, err
	}
	if err := volume.CheckNodeAffinity(pv, node.Labels); err != nil {
		return false, fmt.Errorf("pv %q node affinity doesn't match node %q: %w", pv.Name, node.Name, err)
	}
	return metav1.HasAnnotation(claim.ObjectMeta, volume.AnnBindCompleted), nil
}

func key(claim *v1.PersistentVolumeClaim) string { return claim.Namespace + "/" + claim.Name }

func (w *binding) look() {
	select {
	case w.wake <- struct{}{}:
	default: // it will look anyway
	}
}

func (b *binder) add(w *binding) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for k := range w.claims {
		if b.waiting[k] == nil {
			b.waiting[k] = make(map[*binding]bool)
		}
		b.waiting[k][w] = true
	}
}

func (b *binder) remove(w *binding) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for k := range w.claims {
		if delete(b.waiting[k], w); len(b.waiting[k]) == 0 {
			delete(b.waiting, k)
		}
	}
}

// claimChanged has those look who wait for a claim.
func (b *binder) claimChanged(obj any) {
	if gone, ok := obj.(toolscache.DeletedFinalStateUnknown); ok {
		obj = gone.Obj
	}
	claim, ok := obj.(*v1.PersistentVolumeClaim)
	if !ok {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for w := range b.waiting[key(claim)] {
		w.look()
	}
}

// volumeChanged has those look who wait for the claim of a volume. One that is taken from its claim
// again will not be bound to it.
func (b *binder) volumeChanged(before, after any) {
	was, old := claimedBy(before)
	is, uid := claimedBy(after)
	b.mu.Lock()
	defer b.mu.Unlock()
	for w := range b.waiting[was] {
		if w.claims[was].uid == old && uid != old {
			w.mu.Lock()
			w.lost = fmt.Errorf("the volume of claim %s was taken from it again", was)
			w.mu.Unlock()
			w.look()
		}
	}
	for w := range b.waiting[is] {
		w.look()
	}
}

// claimedBy returns the claim that a volume was given to, "" if there is none.
func claimedBy(obj any) (string, types.UID) {
	if gone, ok := obj.(toolscache.DeletedFinalStateUnknown); ok {
		obj = gone.Obj
	}
	pv, ok := obj.(*v1.PersistentVolume)
	if !ok || pv.Spec.ClaimRef == nil || pv.Spec.ClaimRef.UID == "" {
		return "", ""
	}
	return pv.Spec.ClaimRef.Namespace + "/" + pv.Spec.ClaimRef.Name, pv.Spec.ClaimRef.UID
}

// wakeAll has everyone look, for what concerns few and seldom happens.
func (b *binder) wakeAll() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, all := range b.waiting {
		for w := range all {
			w.look()
		}
	}
}
