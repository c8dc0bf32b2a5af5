package volume

import (
	"log/slog"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"

	"github.com/coracle-project/coracle/cluster/kubelet/volume/source"
)

// waiting are the pods that wait for a claim or a volume, by its key.
type waiting struct {
	log  *slog.Logger
	wake func(types.UID)
	// look has the volumes kept of a pod that follows changes. It does not wait.
	look func(types.UID)

	mu   sync.Mutex
	pods map[string]map[types.UID]struct{}
}

func claimKey(namespace, name string) string { return "claim/" + namespace + "/" + name }

func volumeKey(name string) string { return "volume/" + name }

// heldKey is of a volume that another pod has. The pod that waits may well see the volume itself,
// which ends a wait for its volumeKey.
func heldKey(name string) string { return "held/" + name }

// add has the pod woken at each change of key until it is removed.
func (w *waiting) add(key string, pod types.UID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.pods == nil {
		w.pods = map[string]map[types.UID]struct{}{}
	}
	if w.pods[key] == nil {
		w.pods[key] = map[types.UID]struct{}{}
	}
	w.pods[key][pod] = struct{}{}
}

func (w *waiting) remove(key string, pod types.UID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.removeLocked(key, pod)
}

func (w *waiting) removeLocked(key string, pod types.UID) {
	delete(w.pods[key], pod)
	if len(w.pods[key]) == 0 {
		delete(w.pods, key)
	}
}

// forget is told that a pod waits for nothing any more.
func (w *waiting) forget(pod types.UID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for key := range w.pods {
		w.removeLocked(key, pod)
	}
}

// keptKey is of a claim or volume that a Keeper's volume follows.
func keptKey(key string) string { return "kept/" + key }

// follow has the pod's volumes kept when the claim or the volume changes.
func (w *waiting) follow(s *source.Spec, pod types.UID) {
	w.add(keptKey(volumeKey(s.PV.Name)), pod)
	if ref := s.PV.Spec.ClaimRef; ref != nil {
		w.add(keptKey(claimKey(ref.Namespace, ref.Name)), pod)
	}
}

// of lists the pods of a key.
func (w *waiting) of(key string) (pods []types.UID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for pod := range w.pods[key] {
		pods = append(pods, pod)
	}
	return pods
}

// changed wakes those who wait for key, and looks at those that follow it.
func (w *waiting) changed(key string) {
	if w.wake != nil {
		for _, pod := range w.of(key) {
			w.wake(pod)
		}
	}
	if w.look != nil {
		for _, pod := range w.of(keptKey(key)) {
			w.look(pod)
		}
	}
}

// watch wakes pods by what the process's informers see. Without them, as where the kubelet is
// alone and may read single objects only, pods look again after their back-off.
func (w *waiting) watch(shared informers.SharedInformerFactory) {
	core := shared.Core().V1()
	for _, informer := range []cache.SharedIndexInformer{core.PersistentVolumeClaims().Informer(), core.PersistentVolumes().Informer()} {
		if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc: w.seen, UpdateFunc: func(_, object any) { w.seen(object) },
		}); err != nil { // the informer was stopped: the process is ending
			w.log.Error("kubelet cannot watch claims", "err", err)
		}
	}
}

func (w *waiting) seen(object any) {
	switch o := object.(type) {
	case *v1.PersistentVolumeClaim:
		w.changed(claimKey(o.Namespace, o.Name))
	case *v1.PersistentVolume:
		w.changed(volumeKey(o.Name))
	}
}
