package claims

import (
	"log/slog"
	"maps"
	"slices"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"

	"github.com/coracle-project/coracle/cluster/kubelet/volume/source"
)

// Waiting are the pods that wait for a claim or a volume, by its key. It is safe for concurrent
// use.
type Waiting struct {
	log  *slog.Logger
	wake func(types.UID)
	// look has the volumes kept of a pod that follows changes. It does not wait.
	look func(types.UID)

	mu       sync.Mutex
	pods     map[string]map[types.UID]struct{}
	handlers []cache.InformerSynced
}

// ClaimKey is of a claim.
func ClaimKey(namespace, name string) string { return "claim/" + namespace + "/" + name }

// VolumeKey is of a PersistentVolume.
func VolumeKey(name string) string { return "volume/" + name }

// HeldKey is of a volume that another pod has. The pod that waits may well see the volume itself,
// which ends a wait for its VolumeKey.
func HeldKey(name string) string { return "held/" + name }

// NewWaiting returns an empty set. wake is called for pods that wait when what they wait for has
// changed, and look for those that follow it; neither may block.
func NewWaiting(log *slog.Logger, wake, look func(types.UID)) *Waiting {
	return &Waiting{log: log, wake: wake, look: look, pods: map[string]map[types.UID]struct{}{}}
}

// Keys lists what pods wait for or follow, for tests.
func (w *Waiting) Keys() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Sorted(maps.Keys(w.pods))
}

// Add has the pod woken at each change of key until it is removed.
func (w *Waiting) Add(key string, pod types.UID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.pods[key] == nil {
		w.pods[key] = map[types.UID]struct{}{}
	}
	w.pods[key][pod] = struct{}{}
}

// Remove ends what Add began.
func (w *Waiting) Remove(key string, pod types.UID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.removeLocked(key, pod)
}

func (w *Waiting) removeLocked(key string, pod types.UID) {
	delete(w.pods[key], pod)
	if len(w.pods[key]) == 0 {
		delete(w.pods, key)
	}
}

// Forget is told that a pod waits for nothing any more.
func (w *Waiting) Forget(pod types.UID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for key := range w.pods {
		w.removeLocked(key, pod)
	}
}

// keptKey is of a claim or volume that a Keeper's volume follows.
func keptKey(key string) string { return "kept/" + key }

// Follow has the pod's volumes kept when the claim or the volume changes.
func (w *Waiting) Follow(s *source.Spec, pod types.UID) {
	w.Add(keptKey(VolumeKey(s.PV.Name)), pod)
	if ref := s.PV.Spec.ClaimRef; ref != nil {
		w.Add(keptKey(ClaimKey(ref.Namespace, ref.Name)), pod)
	}
}

// of lists the pods of a key.
func (w *Waiting) of(key string) (pods []types.UID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for pod := range w.pods[key] {
		pods = append(pods, pod)
	}
	return pods
}

// Changed wakes those who wait for key, and looks at those that follow it.
func (w *Waiting) Changed(key string) {
	for _, pod := range w.of(key) {
		w.wake(pod)
	}
	for _, pod := range w.of(keptKey(key)) {
		w.look(pod)
	}
}

// Watch wakes pods by what the process's informers see. Without them, as where the kubelet is
// alone and may read single objects only, pods look again after their back-off.
func (w *Waiting) Watch(shared informers.SharedInformerFactory) {
	core := shared.Core().V1()
	for _, informer := range []cache.SharedIndexInformer{core.PersistentVolumeClaims().Informer(), core.PersistentVolumes().Informer()} {
		h, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc: w.seen, UpdateFunc: func(_, object any) { w.seen(object) },
		})
		if err != nil { // the informer was stopped: the process is ending
			w.log.Error("kubelet cannot watch claims", "err", err)
			continue
		}
		w.mu.Lock()
		w.handlers = append(w.handlers, h.HasSynced)
		w.mu.Unlock()
	}
}

// Handlers tell whether what was there when Watch began has been seen, for tests.
func (w *Waiting) Handlers() []cache.InformerSynced {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.handlers)
}

func (w *Waiting) seen(object any) {
	switch o := object.(type) {
	case *v1.PersistentVolumeClaim:
		w.Changed(ClaimKey(o.Namespace, o.Name))
	case *v1.PersistentVolume:
		w.Changed(VolumeKey(o.Name))
	}
}
