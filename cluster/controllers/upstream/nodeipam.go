package upstream

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/kubernetes/pkg/controller/nodeipam/ipam"

	"github.com/coracle-project/coracle/cluster/client"
	"github.com/coracle-project/coracle/cluster/controllers/internal/nodepatch"
)

// Each node gets 254 addresses for pods, and the usual network of IPv6.
const (
	nodeBits  = 24
	nodeBits6 = 64
)

// PodRanges says where nodes' networks for pods are taken from.
type PodRanges struct {
	// Pods are the networks of all pods, one of each family at most; Services those that no node
	// gets.
	Pods, Services []netip.Prefix
}

// Check says what is wrong, if anything.
func (r PodRanges) Check() error {
	families := map[bool]netip.Prefix{}
	for _, p := range r.Pods {
		bits := nodeSize(p)
		other, twice := families[p.Addr().Is6()]
		switch {
		case p != p.Masked():
			return fmt.Errorf("%s is no network: that would be %s", p, p.Masked())
		case twice:
			return fmt.Errorf("%s and %s are of the same family: there can be one network of IPv4 and one of IPv6", other, p)
		case p.Bits() > bits || p.Bits() < bits-16:
			return fmt.Errorf("%s does not divide into networks of /%d for nodes: choose a network between /%d and /%d", p, bits, bits-16, bits)
		}
		families[p.Addr().Is6()] = p
		for _, s := range r.Services {
			if s.Overlaps(p) {
				return fmt.Errorf("%s overlaps %s, the network of Services", p, s)
			}
		}
	}
	return nil
}

// seldom is how many of the allocator's attempts, which are some minutes apart in the end, have one
// event: two are less than an hour apart, which is how long events are kept.
const seldom = 8

// listLimit bounds the list of nodes that the controller starts with.
const listLimit = 10 * time.Second

// NewNodeIPAM returns the controller that gives each node networks for its pods (spec.podCIDRs). It
// starts with the first node, and writes networks with write.
//
// Upstream's does not start if a node has a network from elsewhere, and counts all networks in a
// larger one as taken, and as free again when its node is deleted. It does not see such networks.
func NewNodeIPAM(set *client.Set, write *nodepatch.Writer, r PodRanges) *OnDemand {
	return &OnDemand{
		name: "node-ipam", log: set.Logger(), informers: set.Informers,
		trigger: set.Informers.Core().V1().Nodes().Informer(),
		make: func(ctx context.Context, g *gate) (func(context.Context), error) {
			params := ipam.CIDRAllocatorParams{}
			for _, p := range r.Pods {
				params.ClusterCIDRs = append(params.ClusterCIDRs, network(p))
				params.NodeCIDRMaskSizes = append(params.NodeCIDRMaskSizes, nodeSize(p))
			}
			listing, stop := context.WithTimeout(ctx, listLimit) // no other controller is made meanwhile
			defer stop()
			all, err := set.Kube.CoreV1().Nodes().List(listing, metav1.ListOptions{})
			if err != nil {
				return nil, err
			}
			known := &corev1.NodeList{}
			for i := range all.Items {
				if n := r.visible(&all.Items[i]); n != nil {
					known.Items = append(known.Items, *n)
				}
			}
			written := &written{nodes: g.Core().V1().Nodes().Lister()}
			nodes := ownNodes{NodeInformer: g.Core().V1().Nodes(), ranges: r, written: written}
			c, err := ipam.NewCIDRRangeAllocator(ctx, sparing{set.Kube, write, r, written}, nodes, params, known)
			if err != nil {
				return nil, err
			}
			warn, flush := warnOfForeign(set, r)
			if _, err := g.Core().V1().Nodes().Informer().AddEventHandler(warn); err != nil {
				flush()
				return nil, err
			}
			return func(ctx context.Context) {
				defer flush()
				c.Run(ctx)
			}, nil
		},
	}
}

// sparing is a client that writes networks of nodes together with what others write to them, and
// few of the allocator's events. The allocator tries forever to find a network for a node when
// there is none left, with an event each time: 700 nodes too many kept the API server busy for
// minutes.
type sparing struct {
	kubernetes.Interface
	write   *nodepatch.Writer
	ranges  PodRanges
	written *written
}

// CoreV1 implements kubernetes.Interface.
func (s sparing) CoreV1() typedcorev1.CoreV1Interface {
	return sparingCore{s.Interface.CoreV1(), s}
}

type sparingCore struct {
	typedcorev1.CoreV1Interface
	of sparing
}

// Nodes implements typedcorev1.CoreV1Interface.
func (s sparingCore) Nodes() typedcorev1.NodeInterface {
	return sparingNodes{s.CoreV1Interface.Nodes(), s.of}
}

type sparingNodes struct {
	typedcorev1.NodeInterface
	of sparing
}

// Patch implements typedcorev1.NodeInterface. The allocator does not use the Node that is returned.
// Networks for a Node are not written to a new one of its name: when the event of the former one's
// end comes, they are free again.
func (s sparingNodes) Patch(ctx context.Context, name string, kind types.PatchType, patch []byte, o metav1.PatchOptions, sub ...string,
) (*corev1.Node, error) {
	cidrs := networksOf(patch)
	known, err := s.of.written.nodes.Get(name)
	if cidrs == nil || len(sub) > 0 || err != nil {
		return s.NodeInterface.Patch(ctx, name, kind, patch, o, sub...)
	}
	// The events of the networks, and of the Node's end, may come before the answer.
	record := s.of.written.add(known, cidrs)
	err = s.of.write.Apply(ctx, name, nodepatch.Change{UID: known.UID, PodCIDRs: cidrs})
	// After an error the allocator frees the networks. If the Node's end has freed them already,
	// another node may have them by now.
	if err != nil && s.of.written.drop(name, record) {
		return nil, err
	}
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}, nil
}

// networksOf returns the networks that a patch of a Node sets, nil if it sets anything else.
func networksOf(patch []byte) []string {
	var p struct {
		Spec struct {
			PodCIDR  string   `json:"podCIDR"`
			PodCIDRs []string `json:"podCIDRs"`
		} `json:"spec"`
	}
	strict := json.NewDecoder(bytes.NewReader(patch))
	strict.DisallowUnknownFields()
	if strict.Decode(&p) != nil || len(p.Spec.PodCIDRs) == 0 || p.Spec.PodCIDR != p.Spec.PodCIDRs[0] {
		return nil
	}
	return p.Spec.PodCIDRs
}

// Events implements typedcorev1.CoreV1Interface.
func (s sparingCore) Events(namespace string) typedcorev1.EventInterface {
	return sparingEvents{s.CoreV1Interface.Events(namespace), s.of.ranges}
}

type sparingEvents struct {
	typedcorev1.EventInterface
	ranges PodRanges
}

// CreateWithEventNamespace implements typedcorev1.EventExpansion.
func (s sparingEvents) CreateWithEventNamespace(e *corev1.Event) (*corev1.Event, error) {
	if e.Reason == "CIDRNotAvailable" {
		e.Type = corev1.EventTypeWarning
		e.Message = fmt.Sprintf("All networks that %v has for nodes are taken: the node has none, and runs no pods, until another node is deleted. "+
			"--pod-cidr sets a larger one for a new cluster.", s.ranges.Pods)
	}
	return s.EventInterface.CreateWithEventNamespaceWithContext(context.Background(), e)
}

// PatchWithEventNamespace implements typedcorev1.EventExpansion: an event has happened again. Some
// are written, so that it lasts as long as what it tells.
func (s sparingEvents) PatchWithEventNamespace(e *corev1.Event, _ []byte) (*corev1.Event, error) {
	if e.Count%seldom != 0 {
		return e, nil
	}
	at, err := e.LastTimestamp.MarshalJSON()
	if err != nil {
		return nil, err
	}
	return s.EventInterface.PatchWithEventNamespaceWithContext(context.Background(), e,
		fmt.Appendf(nil, `{"count":%d,"lastTimestamp":%s}`, e.Count, at))
}

// nodeSize is the prefix length of a node's network out of p.
func nodeSize(p netip.Prefix) int {
	if p.Addr().Is6() {
		return nodeBits6
	}
	return nodeBits
}

// own returns how many of a node's networks, from the first on, are out of r.
func (r PodRanges) own(n *corev1.Node) int {
	for i, text := range n.Spec.PodCIDRs {
		p, err := netip.ParsePrefix(text)
		if err != nil || i >= len(r.Pods) || p != p.Masked() || p.Bits() != nodeSize(r.Pods[i]) || !r.Pods[i].Contains(p.Addr()) {
			return i
		}
	}
	return len(n.Spec.PodCIDRs)
}

// visible returns the node without networks that are not out of r, nil if it has no other.
func (r PodRanges) visible(n *corev1.Node) *corev1.Node {
	own := r.own(n)
	if own == len(n.Spec.PodCIDRs) {
		return n
	}
	if own == 0 {
		return nil
	}
	n = n.DeepCopy()
	n.Spec.PodCIDRs = n.Spec.PodCIDRs[:own]
	return n
}

// warnOfForeign returns a handler that writes an Event for each node with a network that is not out
// of r, and what flushes these.
func warnOfForeign(set *client.Set, r PodRanges) (cache.ResourceEventHandler, func()) {
	events, flush := set.Recorder("node-ipam", "")
	warn := func(n *corev1.Node) {
		events.Eventf(n, corev1.EventTypeWarning, "ForeignPodCIDR", "podCIDR %s is not one that this cluster gives a node out of %v: "+
			"it is not reserved. Delete the Node and let it register again.", n.Spec.PodCIDRs[r.own(n)], r.Pods)
	}
	foreign := func(obj any) bool {
		n, ok := obj.(*corev1.Node)
		return ok && r.own(n) < len(n.Spec.PodCIDRs)
	}
	return cache.FilteringResourceEventHandler{
		FilterFunc: foreign, Handler: cache.ResourceEventHandlerFuncs{AddFunc: func(obj any) { warn(obj.(*corev1.Node)) }},
	}, flush
}

// written are the networks that nodes have in the API, or get just now, and that the informer does
// not have yet. In this process the API server's answer comes before the event. An allocator that
// does not know them takes a second network for the node, and tries three times to write what the
// API server refuses.
type written struct {
	nodes corelisters.NodeLister

	mu       sync.Mutex
	networks map[string]*ownership // by the node's name
}

// ownership is which Node of a name has networks.
type ownership struct {
	uid      types.UID
	networks []string
	freed    bool // with the Node's end
}

func (w *written) add(n *corev1.Node, networks []string) *ownership {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.networks == nil {
		w.networks = map[string]*ownership{}
	}
	record := &ownership{uid: n.UID, networks: networks}
	w.networks[n.Name] = record
	return record
}

// drop is called when the networks of the node were not written. It says whether they are still
// taken.
func (w *written) drop(node string, record *ownership) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.networks[node] == record {
		delete(w.networks, node)
	}
	return !record.freed
}

// free returns the node, which has gone, with the networks that are free then.
func (w *written) free(n *corev1.Node) *corev1.Node {
	w.mu.Lock()
	defer w.mu.Unlock()
	record := w.networks[n.Name]
	n = record.of(n)
	if record != nil && record.uid == n.UID {
		record.freed = slices.Equal(n.Spec.PodCIDRs, record.networks)
		delete(w.networks, n.Name)
	}
	return n
}

// forget is called when the informer has the node's networks.
func (w *written) forget(node string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.networks, node)
}

// with returns the node with its networks.
func (w *written) with(n *corev1.Node) *corev1.Node {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.networks[n.Name].of(n)
}

// of returns the node with the networks, if they are its own and it has no others.
func (o *ownership) of(n *corev1.Node) *corev1.Node {
	if o == nil || o.uid != n.UID || len(n.Spec.PodCIDRs) > 0 {
		return n
	}
	n = n.DeepCopy()
	n.Spec.PodCIDR, n.Spec.PodCIDRs = o.networks[0], o.networks
	return n
}

// ownNodes shows an allocator the nodes without networks that are not its own, and with those that
// it has written.
type ownNodes struct {
	coreinformers.NodeInformer
	ranges  PodRanges
	written *written
}

// Informer implements coreinformers.NodeInformer.
func (o ownNodes) Informer() cache.SharedIndexInformer {
	return ownNodesInformer{o.NodeInformer.Informer(), o.ranges, o.written}
}

// Lister implements coreinformers.NodeInformer.
func (o ownNodes) Lister() corelisters.NodeLister {
	return ownNodesLister{o.NodeInformer.Lister(), o.ranges, o.written}
}

type ownNodesInformer struct {
	cache.SharedIndexInformer
	ranges  PodRanges
	written *written
}

// AddEventHandler implements cache.SharedInformer.
func (o ownNodesInformer) AddEventHandler(h cache.ResourceEventHandler) (cache.ResourceEventHandlerRegistration, error) {
	see := func(obj any, tell func(any)) {
		if gone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
			obj = gone.Obj
		}
		if n, ok := obj.(*corev1.Node); ok {
			if n = o.ranges.visible(n); n != nil {
				tell(n)
			}
		}
	}
	return o.SharedIndexInformer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) { see(obj, func(n any) { h.OnAdd(n, false) }) },
		UpdateFunc: func(old, obj any) {
			if n, ok := obj.(*corev1.Node); ok && len(n.Spec.PodCIDRs) > 0 {
				o.written.forget(n.Name)
			}
			see(obj, func(n any) { h.OnUpdate(old, n) })
		},
		DeleteFunc: func(obj any) {
			// One that goes before the event of its networks leaves them to others.
			see(obj, func(n any) { h.OnDelete(o.written.free(n.(*corev1.Node))) })
		},
	})
}

type ownNodesLister struct {
	corelisters.NodeLister
	ranges  PodRanges
	written *written
}

// Get implements corelisters.NodeLister.
func (o ownNodesLister) Get(name string) (*corev1.Node, error) {
	n, err := o.NodeLister.Get(name)
	if err != nil {
		return nil, err
	}
	if n = o.ranges.visible(n); n == nil {
		return nil, apierrors.NewNotFound(corev1.Resource("nodes"), name)
	}
	return o.written.with(n), nil
}

func network(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}
