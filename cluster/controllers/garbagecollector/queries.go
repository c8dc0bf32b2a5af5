package garbagecollector

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// item is a copy of what a sync needs of a node.
type item struct {
	kind            *kind
	uid             types.UID
	namespace, name string
	state           state
	// uncertain: its owners have to be looked at.
	uncertain bool
}

// item returns the observed object with this UID.
func (g *graph) item(uid types.UID) (item, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	n := g.nodes.Entries[uid]
	if n == nil || n.kind == nil {
		return item{}, false
	}
	return g.itemLocked(n), true
}

func (g *graph) itemLocked(n *node) item {
	return item{n.kind, n.uid, n.namespace, n.name, n.state, g.uncertainLocked(n)}
}

// dependents returns the objects that name uid as an owner, and which of them have it wait.
func (g *graph) dependents(uid types.UID) (all, blocking []item) {
	g.mu.Lock()
	defer g.mu.Unlock()
	n := g.nodes.Entries[uid]
	if n == nil {
		return nil, nil
	}
	for dependent := range n.dependents {
		it := g.itemLocked(dependent)
		all = append(all, it)
		if ref, _ := find(dependent.owners, uid); ref.blocks {
			blocking = append(blocking, it)
		}
	}
	return all, blocking
}

// whereabouts is what the graph knows of an owner.
type whereabouts int

const (
	unknown   whereabouts = iota // has to be asked for
	elsewhere                    // exists, but in another namespace: it cannot own this
	gone
	waiting // for its dependents to be deleted
	solid
)

// owner tells what the graph knows of the owner that ref of an object in namespace names.
func (g *graph) owner(ref metav1.OwnerReference, namespace string) whereabouts {
	g.mu.Lock()
	defer g.mu.Unlock()
	owner := g.nodes.Entries[ref.UID]
	switch {
	case owner == nil:
		return unknown
	case owner.gone:
		return gone
	case owner.kind == nil:
		return unknown
	case owner.kind.Namespaced && owner.namespace != namespace:
		return elsewhere
	case !reference{ref.UID, ref.APIVersion, ref.Kind, ref.Name, false}.is(owner, namespace):
		return unknown
	case owner.state&foreground != 0:
		return waiting
	}
	return solid
}

// recheckIn returns after how long to look again at an object whose owner no watch shows: half a
// second, doubling up to 17 minutes.
func (g *graph) recheckIn(uid types.UID) time.Duration {
	g.mu.Lock()
	defer g.mu.Unlock()
	n := g.nodes.Entries[uid]
	if n == nil {
		return 500 * time.Millisecond
	}
	d := 500 * time.Millisecond << n.rechecks
	if n.rechecks < 11 {
		n.rechecks++
	}
	return d
}
