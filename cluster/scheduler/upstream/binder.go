package upstream

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/component-helpers/storage/volume"
	csitrans "k8s.io/csi-translation-lib"
	csiplugins "k8s.io/csi-translation-lib/plugins"
	"k8s.io/klog/v2"
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
	drivers  csitrans.CSITranslator
	patience time.Duration

	mu      sync.Mutex
	waiting map[string]map[*binding]bool // by the keys of claims and the names of volumes
}

// binding is a pod that waits for its volumes.
type binding struct {
	node   string
	claims map[string]claimed // by key
	wake   chan struct{}      // of one place
}

// claimed is a claim of a pod that had no volume before.
type claimed struct {
	uid types.UID
	// given is the volume that the scheduler has given to it, as it was then. It is nil for a claim
	// for which a volume is made; before is that claim's version before the scheduler asked for
	// that.
	given  *v1.PersistentVolume
	before string
}

// noTime is how upstream's binder says that it has waited in vain; what it does before gives other
// errors.
const noTime = "binding volumes: "

func newBinder(h *framework.Handle, upstreams volumebinding.SchedulerVolumeBinder, patience time.Duration) (*binder, error) {
	b := &binder{
		SchedulerVolumeBinder: upstreams, h: h, drivers: csitrans.New(), patience: patience,
		waiting: make(map[string]map[*binding]bool),
	}
	core := h.Informers.Core().V1()
	changed := toolscache.ResourceEventHandlerFuncs{
		AddFunc: b.changed, UpdateFunc: func(_, obj any) { b.changed(obj) }, DeleteFunc: b.changed,
	}
	_, claims := core.PersistentVolumeClaims().Informer().AddEventHandler(changed)
	_, volumes := core.PersistentVolumes().Informer().AddEventHandler(changed)
	_, nodes := core.Nodes().Informer().AddEventHandler(toolscache.ResourceEventHandlerFuncs{DeleteFunc: func(any) { b.wakeAll() }})
	return b, errors.Join(claims, volumes, nodes)
}

// BindPodVolumes asks for the pod's volumes and waits until all are bound.
func (b *binder) BindPodVolumes(ctx context.Context, pod *v1.Pod, volumes *volumebinding.PodVolumes) error {
	var given []*v1.PersistentVolume
	err := b.SchedulerVolumeBinder.BindPodVolumes(context.WithValue(ctx, givenKey{}, &given), pod, volumes)
	if err == nil || !errors.Is(err, context.DeadlineExceeded) || ctx.Err() != nil || !strings.HasPrefix(err.Error(), noTime) {
		return err
	}
	w := &binding{node: pod.Spec.NodeName, claims: make(map[string]claimed), wake: make(chan struct{}, 1)}
	for _, p := range volumes.DynamicProvisions {
		w.claims[key(p.PVC)] = claimed{uid: p.PVC.UID, before: p.PVC.ResourceVersion}
	}
	for _, pv := range given {
		if ref := pv.Spec.ClaimRef; ref != nil {
			w.claims[ref.Namespace+"/"+ref.Name] = claimed{uid: ref.UID, given: pv}
		}
	}
	b.add(w) // before the first look, so that no change is missed
	defer b.remove(w)
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

// state says for what the pod waits yet, nothing if all its claims are bound, or why that will not
// come to be.
func (b *binder) state(w *binding) (pending string, err error) {
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
	case c.given != nil:
		if ok, err := b.stillGiven(k, c, node); !ok {
			return false, err
		}
	case claim.ResourceVersion == c.before:
		return false, nil // the informer does not have the change yet
	case claim.Annotations[volume.AnnSelectedNode] != node.Name:
		return false, fmt.Errorf("provisioning failed for PVC %q", claim.Name)
	case claim.Spec.VolumeName != "":
		pv, err := core.PersistentVolumes().Lister().Get(claim.Spec.VolumeName)
		if apierrors.IsNotFound(err) {
			return false, nil
		}
		if err == nil {
			err = b.reachable(pv, node)
		}
		if err != nil {
			return false, err
		}
	}
	return claim.Spec.VolumeName != "" && metav1.HasAnnotation(claim.ObjectMeta, volume.AnnBindCompleted), nil
}

// stillGiven says whether the informer has the volume that claim k was given, or an error if it was
// taken away again. That is seen of what is there: an informer that lists again may miss what was
// between.
func (b *binder) stillGiven(k string, c claimed, node *v1.Node) (bool, error) {
	pv, err := b.h.Informers.Core().V1().PersistentVolumes().Lister().Get(c.given.Name)
	if err != nil {
		return false, fmt.Errorf("look up the volume of claim %s: %w", k, err)
	}
	age, err := resourceversion.CompareResourceVersion(pv.ResourceVersion, c.given.ResourceVersion)
	if err != nil {
		return false, fmt.Errorf("volume %s: %w", pv.Name, err)
	}
	if age < 0 {
		return false, nil
	}
	if ref := pv.Spec.ClaimRef; ref == nil || ref.UID != c.uid {
		return false, fmt.Errorf("the volume of claim %s was taken from it again", k)
	}
	return true, b.reachable(pv, node)
}

// reachable returns why pv cannot be reached from node.
func (b *binder) reachable(pv *v1.PersistentVolume, node *v1.Node) error {
	pv, err := b.onNode(pv, node)
	if err != nil {
		return fmt.Errorf("translate pv: %w", err)
	}
	if err := volume.CheckNodeAffinity(pv, node.Labels); err != nil {
		return fmt.Errorf("pv %q node affinity doesn't match node %q: %w", pv.Name, node.Name, err)
	}
	return nil
}

// onNode returns pv as it is to the driver that has taken over its plugin on node, if one has: the
// driver has labels of its own. Upstream's binder does the same.
func (b *binder) onNode(pv *v1.PersistentVolume, node *v1.Node) (*v1.PersistentVolume, error) {
	if !b.drivers.IsPVMigratable(pv) {
		return pv, nil
	}
	plugin, err := b.drivers.GetInTreePluginNameFromSpec(pv, nil)
	if err != nil {
		return nil, err
	}
	csiNode, err := b.h.Informers.Storage().V1().CSINodes().Lister().Get(node.Name)
	if apierrors.IsNotFound(err) || plugin == csiplugins.VSphereInTreePluginName || plugin == csiplugins.AzureFileInTreePluginName {
		return pv, nil
	}
	if err != nil {
		return nil, err
	}
	if !slices.Contains(strings.Split(csiNode.Annotations[v1.MigratedPluginsAnnotationKey], ","), plugin) {
		return pv, nil
	}
	return b.drivers.TranslateInTreePVToCSI(klog.Background(), pv)
}

func key(claim *v1.PersistentVolumeClaim) string { return claim.Namespace + "/" + claim.Name }

func (w *binding) look() {
	select {
	case w.wake <- struct{}{}:
	default: // it will look anyway
	}
}

// keys are of all that w waits for.
func (w *binding) keys() []string {
	var keys []string
	for k, c := range w.claims {
		if keys = append(keys, k); c.given != nil {
			keys = append(keys, c.given.Name)
		}
	}
	return keys
}

func (b *binder) add(w *binding) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, k := range w.keys() {
		if b.waiting[k] == nil {
			b.waiting[k] = make(map[*binding]bool)
		}
		b.waiting[k][w] = true
	}
}

func (b *binder) remove(w *binding) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, k := range w.keys() {
		if delete(b.waiting[k], w); len(b.waiting[k]) == 0 {
			delete(b.waiting, k)
		}
	}
}

// changed has those look who wait for a claim, or a volume or its claim.
func (b *binder) changed(obj any) {
	if gone, ok := obj.(toolscache.DeletedFinalStateUnknown); ok {
		obj = gone.Obj
	}
	var keys []string
	switch o := obj.(type) {
	case *v1.PersistentVolumeClaim:
		keys = []string{key(o)}
	case *v1.PersistentVolume:
		if keys = []string{o.Name}; o.Spec.ClaimRef != nil {
			keys = append(keys, o.Spec.ClaimRef.Namespace+"/"+o.Spec.ClaimRef.Name)
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, k := range keys {
		for w := range b.waiting[k] {
			w.look()
		}
	}
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
