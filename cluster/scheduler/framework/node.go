package framework

import (
	"fmt"
	"maps"
	"slices"
	"sync/atomic"

	v1 "k8s.io/api/core/v1"
)

// NodeInfo is a node with its pods, summed up. One that is in a Snapshot never changes: the cache
// and what-ifs change a Clone.
type NodeInfo struct {
	// Slot is a small number that the node keeps while it exists and that no other has meanwhile,
	// for tables of what is known of nodes.
	Slot int
	// Generation grows with each change of any node of the same Generations: equal generations, equal
	// contents.
	Generation int64
	// Unschedulable and Taints are those of the node's spec. They are looked at for each pod and
	// node, and the node's object is far away in memory.
	Unschedulable bool
	Taints        []v1.Taint

	Pods                         []*PodInfo
	PodsWithAffinity             []*PodInfo
	PodsWithRequiredAntiAffinity []*PodInfo

	// Requested is what the pods request, NonZero… what they are scored with.
	Requested       Resource
	NonZeroMilliCPU int64
	NonZeroMemory   int64
	Allocatable     Resource
	// HostPorts are the ports taken, with how many pods hold each.
	HostPorts map[HostPort]int
	// Images are the images on the node, by each of their names.
	Images map[string]*ImageState

	node        *v1.Node
	generations *Generations // of all clones, too
}

// ImageState is an image that some nodes have.
type ImageState struct {
	Size  int64 // bytes
	Nodes atomic.Int64
}

// Generations numbers the changes of all nodes that are compared with each other.
type Generations struct{ last atomic.Int64 }

// NewNodeInfo returns an empty node, whose changes generations numbers.
func NewNodeInfo(slot int, generations *Generations) *NodeInfo {
	n := &NodeInfo{Slot: slot, generations: generations}
	n.changed()
	return n
}

func (n *NodeInfo) changed() { n.Generation = n.generations.last.Add(1) }

// Node returns the node's object; it must not be changed.
func (n *NodeInfo) Node() *v1.Node { return n.node }

// SetNode replaces the node's object; nil when it is gone and only pods are left.
func (n *NodeInfo) SetNode(node *v1.Node) {
	n.node = node
	n.Allocatable, n.Unschedulable, n.Taints = Resource{}, false, nil
	if node != nil {
		n.Allocatable = NewResource(node.Status.Allocatable)
		n.Unschedulable, n.Taints = node.Spec.Unschedulable, node.Spec.Taints
	}
	n.changed()
}

// Clone returns a copy that can be changed without n noticing.
func (n *NodeInfo) Clone() *NodeInfo {
	c := *n
	// Room for one more, since a clone is most often made to add a pod.
	c.Pods = append(make([]*PodInfo, 0, len(n.Pods)+1), n.Pods...)
	c.PodsWithAffinity = slices.Clone(n.PodsWithAffinity)
	c.PodsWithRequiredAntiAffinity = slices.Clone(n.PodsWithRequiredAntiAffinity)
	c.HostPorts = maps.Clone(n.HostPorts)
	return &c
}

// Add puts p on the node.
func (n *NodeInfo) Add(p *PodInfo) {
	n.Pods = append(n.Pods, p)
	if p.hasAffinity() {
		n.PodsWithAffinity = append(n.PodsWithAffinity, p)
	}
	if len(p.RequiredAntiAffinity) > 0 {
		n.PodsWithRequiredAntiAffinity = append(n.PodsWithRequiredAntiAffinity, p)
	}
	n.count(p, 1)
}

// Remove takes the pod with p's UID off the node.
func (n *NodeInfo) Remove(p *PodInfo) error {
	uid := p.Pod().UID
	same := func(o *PodInfo) bool { return o.Pod().UID == uid }
	i := slices.IndexFunc(n.Pods, same)
	if i < 0 {
		return fmt.Errorf("pod %s/%s is not on the node", p.Pod().Namespace, p.Pod().Name)
	}
	removed := n.Pods[i]
	n.Pods = slices.Delete(n.Pods, i, i+1)
	n.PodsWithAffinity = slices.DeleteFunc(n.PodsWithAffinity, same)
	n.PodsWithRequiredAntiAffinity = slices.DeleteFunc(n.PodsWithRequiredAntiAffinity, same)
	n.count(removed, -1)
	return nil
}

func (n *NodeInfo) count(p *PodInfo, sign int64) {
	n.Requested.add(&p.Requests, sign)
	n.NonZeroMilliCPU += sign * p.NonZeroMilliCPU
	n.NonZeroMemory += sign * p.NonZeroMemory
	for _, port := range p.HostPorts {
		if n.HostPorts == nil {
			n.HostPorts = make(map[HostPort]int)
		}
		if n.HostPorts[port] += int(sign); n.HostPorts[port] <= 0 {
			delete(n.HostPorts, port)
		}
	}
	n.changed()
}

// PortTaken says whether a pod on the node holds a port that conflicts with p.
func (n *NodeInfo) PortTaken(p HostPort) bool {
	if len(n.HostPorts) == 0 {
		return false
	}
	if p.IP != anyIP {
		return n.HostPorts[p] > 0 || n.HostPorts[HostPort{anyIP, p.Protocol, p.Port}] > 0
	}
	for o := range n.HostPorts {
		if p.Conflicts(o) {
			return true
		}
	}
	return false
}

// Snapshot is the cluster's nodes at one moment. Plugins only read it.
type Snapshot struct {
	// Nodes are in the order in which they are tried: round robin over the zones.
	Nodes []*NodeInfo
	// Generations are those of Nodes, together in memory. Empty if they are not kept.
	Generations []int64
	// FindImage returns an image that nodes have, by one of its names; nil if none has it. It is nil
	// itself if that is not known.
	FindImage func(name string) *ImageState
	// Position says where in Nodes the node of a name is.
	Position map[string]int
	// Slots is one more than the highest slot of a node.
	Slots int
	// WithAffinity and WithRequiredAntiAffinity are the positions of nodes that have such pods.
	WithAffinity             []int
	WithRequiredAntiAffinity []int
}

// Get returns the node of that name, or nil.
func (s *Snapshot) Get(name string) *NodeInfo {
	if i, ok := s.Position[name]; ok {
		return s.Nodes[i]
	}
	return nil
}

// At returns the nodes at positions.
func (s *Snapshot) At(positions []int) []*NodeInfo {
	nodes := make([]*NodeInfo, len(positions))
	for i, p := range positions {
		nodes[i] = s.Nodes[p]
	}
	return nodes
}
