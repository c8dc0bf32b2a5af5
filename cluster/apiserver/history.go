package apiserver

import (
	"reflect"
	"sync"
	"unsafe"

	"k8s.io/apiserver/pkg/storage/cacher"
)

const (
	// historyLimit is how many of the last changes of a resource with few objects its watch cache
	// keeps at most. At 700 changes a second, about the most that this server writes of pods, they
	// are those of three seconds: enough for a client that lists and then watches. A client that
	// stayed away longer than that, in such a burst, lists again. (Until 1.18 upstream kept 1,000 of
	// pods and nodes, and 100 of others.)
	historyLimit = 2048
	// historyShare is how many objects there are for each change that is kept, of a resource with
	// many. To list 100,000 pods takes 4 s, and 10 s next to other work. A client that has listed
	// them can watch only if the changes since then are kept: those of 18 s. They take some 3 % of
	// the memory that the pods need.
	historyShare = 8
)

// historyOf is the limit for a resource of so many objects: least, if they are few.
func historyOf(objects int64, least int) int { return max(least, int(objects/historyShare)) }

// boundHistory has a watch cache keep limit changes at most. Upstream's keeps those of 75 seconds,
// up to 102,400, and has no setting for that. For each it has the object before and after, and a
// snapshot of the resource, which shares all but three nodes of a tree with the next one: some
// 8 kB for a pod.
//
// It reports false, and does nothing, if this is another cacher than the one it was written for.
func boundHistory(c *cacher.Cacher, limit int) bool {
	history := reflect.ValueOf(c).Elem().FieldByName("watchCache")
	if !history.IsValid() || history.Kind() != reflect.Pointer || history.IsNil() || history.Elem().Kind() != reflect.Struct {
		return false
	}
	mu, bound := history.Elem().FieldByName("RWMutex"), history.Elem().FieldByName("upperBoundCapacity")
	if !mu.IsValid() || mu.Type() != reflect.TypeFor[sync.RWMutex]() || !bound.IsValid() || bound.Kind() != reflect.Int {
		return false
	}
	lock := (*sync.RWMutex)(unsafe.Pointer(mu.UnsafeAddr())) //nolint:gosec // not exported, as the next
	lock.Lock()
	defer lock.Unlock()
	*(*int)(unsafe.Pointer(bound.UnsafeAddr())) = limit //nolint:gosec // see above
	return true
}
