package garbagecollector

import (
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/coracle-project/coracle/cluster/controllers/kinds"
	"github.com/coracle-project/coracle/cluster/internal/shrink"
)

// graph holds every object that the collector watches, by UID, and who owns whom. It is all that
// the collector keeps of an object. Watches change it; mu is held for map operations only.
type graph struct {
	mu    sync.Mutex
	nodes shrink.Map[types.UID, *node]
	// pending are UIDs to be looked at, held back until all watches have delivered what exists: an
	// owner that is merely not listed yet must not be asked for, nor a dependent be missed.
	pending sets.Set[types.UID]
	// add queues a UID to be looked at; nil until the graph is complete.
	add func(uid string)
	// observer gets objects, with mu held. It may be nil.
	observer Observer
}

// newGraph returns an empty graph. observer may be nil.
func newGraph(observer Observer) *graph {
	return &graph{nodes: shrink.New[types.UID, *node](), observer: observer}
}

// kind is shared by the nodes of one resource, so that a node need not hold its strings.
type kind struct {
	kinds.Resource
	apiVersion string
}

func newKind(r kinds.Resource) *kind { return &kind{Resource: r, apiVersion: r.APIVersion()} }

type state uint8

const (
	deleting   state = 1 << iota // has a deletion timestamp
	foreground                   // deleting, and waits until its dependents are gone
	orphaning                    // deleting, and waits until its dependents have forgotten it
)

// node is one object, or, while kind is nil, a UID that others only claim as their owner.
type node struct {
	kind            *kind
	uid             types.UID
	namespace, name string
	owners          []reference
	dependents      map[*node]struct{}
	state           state
	// gone says that the object was seen to be deleted: a UID never comes back.
	gone bool
	// rechecks counts how often an owner had to be asked for that no watch shows.
	rechecks uint8
}

// reference is an owner reference with what decides about collection.
type reference struct {
	uid              types.UID
	apiVersion, kind string
	name             string
	blocks           bool
}

func referencesOf(obj metav1.Object) []reference {
	refs := obj.GetOwnerReferences()
	if len(refs) == 0 {
		return nil
	}
	out := make([]reference, 0, len(refs))
	for _, ref := range refs {
		out = append(out, reference{ref.UID, ref.APIVersion, ref.Kind, ref.Name, ref.BlockOwnerDeletion != nil && *ref.BlockOwnerDeletion})
	}
	return out
}

func stateOf(obj metav1.Object) state {
	if obj.GetDeletionTimestamp() == nil {
		return 0
	}
	s := deleting
	for _, finalizer := range obj.GetFinalizers() {
		switch finalizer {
		case metav1.FinalizerDeleteDependents:
			s |= foreground
		case metav1.FinalizerOrphanDependents:
			s |= orphaning
		}
	}
	return s
}

// is reports whether owner, which must have been observed, is what ref of a dependent in
// namespace speaks of. The same UID under another name, kind or namespace is not.
func (ref reference) is(owner *node, namespace string) bool {
	return owner.kind.apiVersion == ref.apiVersion && owner.kind.Kind == ref.kind && owner.name == ref.name &&
		(!owner.kind.Namespaced || owner.namespace == namespace)
}

// observe takes over what an object looks like now.
func (g *graph) observe(k *kind, obj metav1.Object) {
	g.mu.Lock()
	defer g.mu.Unlock()
	uid := obj.GetUID()
	n := g.nodes.Entries[uid]
	if n == nil {
		n = &node{uid: uid}
		g.nodes.Entries[uid] = n
	}
	appeared := n.kind == nil
	n.kind, n.gone = k, false
	if g.observer != nil {
		g.observer.Exists(k.Resource, obj)
	}
	if appeared {
		n.namespace, n.name = obj.GetNamespace(), obj.GetName()
		for dependent := range n.dependents { // those who took it for something else
			if g.uncertainLocked(dependent) {
				g.lookAtLocked(dependent.uid)
			}
		}
	}
	g.relinkLocked(n, referencesOf(obj))

	before := n.state
	n.state = stateOf(obj)
	switch started := n.state &^ before; {
	case started&orphaning != 0:
		g.lookAtLocked(uid)
	case started&foreground != 0:
		for dependent := range n.dependents {
			g.lookAtLocked(dependent.uid)
		}
		g.lookAtLocked(uid)
	}
}

// relinkLocked makes refs the owners of n, and checks each object that loses an owner or gets an
// unknown one.
func (g *graph) relinkLocked(n *node, refs []reference) {
	old := n.owners
	if len(old) == 0 && len(refs) == 0 {
		return
	}
	n.owners = refs
	for _, before := range old {
		owner := g.nodes.Entries[before.uid]
		if owner == nil {
			continue
		}
		now, still := find(refs, before.uid)
		if !still {
			g.unlinkLocked(n, owner)
		}
		if before.blocks && !now.blocks && owner.state&foreground != 0 {
			g.lookAtLocked(owner.uid)
		}
	}
	for _, ref := range refs {
		owner := g.nodes.Entries[ref.uid]
		if owner == nil {
			owner = &node{uid: ref.uid}
			g.nodes.Entries[ref.uid] = owner
		}
		if owner.dependents == nil {
			owner.dependents = map[*node]struct{}{}
		}
		owner.dependents[n] = struct{}{}
	}
	if g.uncertainLocked(n) {
		g.lookAtLocked(n.uid)
	}
}

func (g *graph) unlinkLocked(n, owner *node) {
	delete(owner.dependents, n)
	if len(owner.dependents) == 0 {
		owner.dependents = nil
		if owner.kind == nil {
			g.nodes.Delete(owner.uid)
		}
	}
}

// forget takes over that an object is no more.
func (g *graph) forget(uid types.UID) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if n := g.nodes.Entries[uid]; n != nil && n.kind != nil {
		n.gone = true
		g.dropLocked(n)
	}
}

// dropLocked leaves of n only that others name it as their owner.
func (g *graph) dropLocked(n *node) {
	owners := n.owners
	if g.observer != nil {
		g.observer.Gone(n.uid)
	}
	n.kind, n.owners, n.state = nil, nil, 0
	for _, ref := range owners {
		if owner := g.nodes.Entries[ref.uid]; owner != nil {
			g.unlinkLocked(n, owner)
			if owner.state&foreground != 0 {
				g.lookAtLocked(owner.uid)
			}
		}
	}
	if len(n.dependents) == 0 {
		g.nodes.Delete(n.uid)
	}
	for dependent := range n.dependents {
		g.lookAtLocked(dependent.uid)
	}
}

// replace takes over that the objects of kind k are those in live, and no others.
func (g *graph) replace(k *kind, live sets.Set[types.UID]) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for uid, n := range g.nodes.Entries {
		if n.kind == k && !live.Has(uid) {
			n.gone = true
			g.dropLocked(n)
		}
	}
}

// abandon takes over that the objects of kind k are watched no longer. Whether they exist is
// unknown from now on.
func (g *graph) abandon(k *kind) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, n := range g.nodes.Entries {
		if n.kind == k {
			g.dropLocked(n)
		}
	}
}

// complete lets the UIDs that were held back into the queue, and from now on each at once.
func (g *graph) complete(add func(uid string)) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.add = add
	for uid := range g.pending {
		add(string(uid))
	}
	g.pending = nil
}

func (g *graph) lookAtLocked(uid types.UID) {
	if g.add != nil {
		g.add(string(uid))
		return
	}
	if g.pending == nil {
		g.pending = sets.New[types.UID]()
	}
	g.pending.Insert(uid)
}

// uncertainLocked reports whether some owner of n is not there as n says, or waits for n to go.
func (g *graph) uncertainLocked(n *node) bool {
	for _, ref := range n.owners {
		owner := g.nodes.Entries[ref.uid]
		if owner == nil || owner.kind == nil || owner.state&foreground != 0 || !ref.is(owner, n.namespace) {
			return true
		}
	}
	return false
}

func find(refs []reference, uid types.UID) (reference, bool) {
	for _, ref := range refs {
		if ref.uid == uid {
			return ref, true
		}
	}
	return reference{}, false
}
