// Package freshness keeps a controller from acting on a cache that is older than its own writes.
//
// A controller reads from an informer's cache, which learns of a write only when the watch brings
// it back. If it counted pods before the twenty that it has just created show, it would create
// twenty more. So each write is noted here under the key whose sync made it, and the next sync of
// that key is put off until the cache shows the write:
//
//	c.writes = freshness.New(set.Logger())
//	c.queue = frame.New("replicaset", 5, set.Logger(), c.writes.Guard(c.sync, c.later))
//
// Creates, updates and patches are noted with the resource version that the API answered with: the
// cache shows them once it has seen that version. A delete answers with no version, so it is noted
// with the object's UID: the cache shows it once the object is gone, or on its way out.
//
// Nothing polls: what is waited for is an object whose event wakes the very same key. Only when a
// watch broke and its objects were listed again can such an event be missing, so a put-off key is
// looked at again after [Patience]. Nothing expires either: a cache that stays behind means a watch
// that stays broken, and acting in the dark would make things worse.
package freshness

import (
	"context"
	"log/slog"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/client-go/tools/cache"

	"github.com/coracle-project/coracle/cluster/controllers/frame"
)

// Patience is how long a key that waits for its own writes sleeps if no event wakes it.
const Patience = 10 * time.Second

// Writes is what one controller wrote and its caches do not show yet. It is safe for concurrent
// use.
type Writes struct {
	log     *slog.Logger
	mu      sync.Mutex
	pending map[string]*pending
}

// pending is what is awaited under one key.
type pending struct {
	versions map[cache.Store]string       // the newest version written of what each store caches
	leaving  map[types.UID]cachedPresence // what was deleted
}

// cachedPresence is where a deleted object would still be seen.
type cachedPresence struct {
	store cache.Store
	key   string
}

// New returns an empty Writes. log must not be nil.
func New(log *slog.Logger) *Writes { return &Writes{log: log, pending: map[string]*pending{}} }

// Wrote notes that the sync of key left an object of store at version, as answered by the API.
func (w *Writes) Wrote(key string, store cache.Store, version string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	p := w.ofLocked(key)
	if old, ok := p.versions[store]; ok {
		if order, err := resourceversion.CompareResourceVersion(old, version); err == nil && order >= 0 {
			return
		}
	}
	p.versions[store] = version
}

// Deleted notes that the sync of key has asked for obj, which store caches, to be deleted.
func (w *Writes) Deleted(key string, store cache.Store, obj metav1.Object) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ofLocked(key).leaving[obj.GetUID()] = cachedPresence{store, cache.MetaObjectToName(obj).String()}
}

func (w *Writes) ofLocked(key string) *pending {
	p := w.pending[key]
	if p == nil {
		p = &pending{versions: map[cache.Store]string{}, leaving: map[types.UID]cachedPresence{}}
		w.pending[key] = p
	}
	return p
}

// Forget drops what is awaited under key, whose object is no more.
func (w *Writes) Forget(key string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.pending, key)
}

// Acted reports whether anything was written under key since the sync of key began: what that sync
// has read is then no longer how things are, even if the caches already show it.
func (w *Writes) Acted(key string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.pending[key] != nil
}

// Shown reports whether the caches show everything that was written under key.
func (w *Writes) Shown(key string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	p := w.pending[key]
	if p == nil {
		return true
	}
	for store, version := range p.versions {
		if !reached(store, version) {
			return false
		}
		delete(p.versions, store)
	}
	for uid, at := range p.leaving {
		if obj, ok, _ := at.store.GetByKey(at.key); ok {
			if m, ok := obj.(metav1.Object); ok && m.GetUID() == uid && m.GetDeletionTimestamp() == nil {
				return false
			}
		}
		delete(p.leaving, uid)
	}
	delete(w.pending, key)
	return true
}

// reached reports whether store has seen version. Versions that cannot be compared do not hold a
// controller up.
func reached(store cache.Store, version string) bool {
	order, err := resourceversion.CompareResourceVersion(store.LastStoreSyncResourceVersion(), version)
	return err != nil || order >= 0
}

// Guard returns sync, put off while the caches are behind what was written under the key. A sync
// that meets a conflict worked from an object that is no longer the newest, which is the same case
// seen later: it is not an error, the newer object's event calls it again. later is the
// controller's [frame.Controller.AddAfter].
func (w *Writes) Guard(sync frame.Sync, later func(key string, d time.Duration)) frame.Sync {
	return func(ctx context.Context, key string) error {
		if !w.Shown(key) {
			later(key, Patience)
			return nil
		}
		err := sync(ctx, key)
		if apierrors.IsConflict(err) {
			w.log.Debug("object was changed meanwhile", "key", key, "err", err)
			later(key, Patience)
			return nil
		}
		return err
	}
}
