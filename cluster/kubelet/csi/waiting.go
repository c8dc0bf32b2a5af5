package csi

import (
	"log/slog"
	"sync"

	"k8s.io/apimachinery/pkg/types"
)

// waiting are the pods' volumes that wait, by what they wait for. They are safe for concurrent
// use, and call nothing while they are locked.
type waiting struct {
	log *slog.Logger
	// wakePod may be nil.
	wakePod func(types.UID)

	mu    sync.Mutex
	users map[string]map[user]struct{}
}

func driverKey(name string) string { return "driver/" + name }

// add has the pod woken at the next call of wake for key.
func (w *waiting) add(key string, u user) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.users[key] == nil {
		w.users[key] = map[user]struct{}{}
	}
	w.users[key][u] = struct{}{}
}

// remove is told that the pod's volume does not wait for key any more.
func (w *waiting) remove(key string, u user) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if delete(w.users[key], u); len(w.users[key]) == 0 {
		delete(w.users, key)
	}
}

// has says whether a volume waits for key.
func (w *waiting) has(key string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.users[key]) > 0
}

// forget is told that the pod's volume waits for nothing any more.
func (w *waiting) forget(u user) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for key, users := range w.users {
		if delete(users, u); len(users) == 0 {
			delete(w.users, key)
		}
	}
}

// wake wakes the pods that wait for key.
func (w *waiting) wake(key string) {
	w.mu.Lock()
	pods := map[types.UID]struct{}{}
	for u := range w.users[key] {
		pods[u.pod] = struct{}{}
	}
	delete(w.users, key)
	w.mu.Unlock()
	if w.wakePod == nil {
		return
	}
	for pod := range pods {
		w.log.Debug("csi: a pod may go on", "pod", pod, "for", key)
		w.wakePod(pod)
	}
}
