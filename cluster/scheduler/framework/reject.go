package framework

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/sets"
)

// notAsked is the status of nodes that no plugin was asked about.
var notAsked = &Status{code: Unresolvable}

// Rejections says of each node of a snapshot why a pod does not fit it.
type Rejections struct {
	// Others is the status of the nodes that have none of their own.
	Others *Status

	nodes  *Snapshot
	bySlot []*Status
	count  int
}

// NewRejections returns rejections in which no node has a status of its own.
func NewRejections(nodes *Snapshot) *Rejections {
	return &Rejections{Others: notAsked, nodes: nodes, bySlot: make([]*Status, nodes.Slots)}
}

// Set gives node a status of its own.
func (r *Rejections) Set(node *NodeInfo, s *Status) {
	if r.bySlot[node.Slot] == nil {
		r.count++
	}
	r.bySlot[node.Slot] = s
}

// Add takes over the statuses that o has of nodes.
func (r *Rejections) Add(o *Rejections) {
	for _, n := range r.nodes.Nodes {
		if s := o.bySlot[n.Slot]; s != nil {
			r.Set(n, s)
		}
	}
}

// Get returns the status of the node of that name.
func (r *Rejections) Get(name string) *Status {
	if n := r.nodes.Get(name); n != nil && r.bySlot[n.Slot] != nil {
		return r.bySlot[n.Slot]
	}
	return r.Others
}

// Nodes returns the nodes whose status is code, in the snapshot's order.
func (r *Rejections) Nodes(code Code) []*NodeInfo {
	var nodes []*NodeInfo
	for _, n := range r.nodes.Nodes {
		s := r.bySlot[n.Slot]
		if s == nil {
			s = r.Others
		}
		if s.Code() == code {
			nodes = append(nodes, n)
		}
	}
	return nodes
}

// Plugins adds the names of the plugins that rejected nodes to names.
func (r *Rejections) Plugins(names sets.Set[string]) {
	var last *Status
	for _, s := range r.bySlot {
		if s != nil && s != last && s.plugin != "" && s.Rejected() {
			names.Insert(s.plugin)
			last = s
		}
	}
}

// reasons counts each reason over all nodes, "3 Insufficient cpu", sorted as text.
func (r *Rejections) reasons() []string {
	statuses := make(map[*Status]int) // plugins give the same status for many nodes
	for _, s := range r.bySlot {
		if s != nil {
			statuses[s]++
		}
	}
	if rest := len(r.nodes.Nodes) - r.count; rest > 0 {
		statuses[r.Others] += rest
	}
	counts := make(map[string]int)
	for s, n := range statuses {
		for _, reason := range s.Reasons() {
			counts[reason] += n
		}
	}
	lines := make([]string, 0, len(counts))
	for reason, n := range counts {
		lines = append(lines, fmt.Sprintf("%d %s", n, reason))
	}
	slices.Sort(lines)
	return lines
}

// FitError is that a pod fits no node.
type FitError struct {
	// Nodes is how many there are.
	Nodes int
	// Rejections are nil if only one node was in question.
	Rejections *Rejections
	// Plugins are those that rejected the pod.
	Plugins sets.Set[string]
	// PreFilter is why the pod was rejected before nodes were tried, and PostFilter what came of
	// making room; both may be empty.
	PreFilter, PostFilter string
}

// Error is the message that users read.
func (f *FitError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "0/%d nodes are available:", f.Nodes)
	why := f.PreFilter
	if why == "" && f.Rejections != nil {
		why = strings.Join(f.Rejections.reasons(), ", ")
	}
	if why != "" {
		b.WriteString(" " + why + ".")
	}
	if f.PostFilter != "" {
		b.WriteString(" " + f.PostFilter)
	}
	return b.String()
}
