package cache

import (
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/node/topology"

	"github.com/coracle-project/coracle/cluster/scheduler/framework"
)

// Update brings s, which is always the same and at first empty, up to date. No one may read s
// meanwhile.
func (c *Cache) Update(s *framework.Snapshot) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if s.FindImage == nil {
		s.FindImage = c.findImage
	}
	if c.reordered {
		c.rebuildLocked(s)
		return
	}
	var affinity, anti bool
	for _, n := range c.changed {
		n.changed = false
		if n.position < 0 {
			continue
		}
		old := s.Nodes[n.position]
		affinity = affinity || (len(old.PodsWithAffinity) == 0) != (len(n.info.PodsWithAffinity) == 0)
		anti = anti || (len(old.PodsWithRequiredAntiAffinity) == 0) != (len(n.info.PodsWithRequiredAntiAffinity) == 0)
		s.Nodes[n.position], s.Generations[n.position] = n.info, n.info.Generation
		n.published = true
	}
	clear(c.changed)
	c.changed = c.changed[:0]
	if affinity {
		s.WithAffinity = positions(s, func(n *framework.NodeInfo) bool { return len(n.PodsWithAffinity) > 0 })
	}
	if anti {
		s.WithRequiredAntiAffinity = positions(s, func(n *framework.NodeInfo) bool { return len(n.PodsWithRequiredAntiAffinity) > 0 })
	}
}

func positions(s *framework.Snapshot, f func(*framework.NodeInfo) bool) []int {
	var list []int
	for i, n := range s.Nodes {
		if f(n) {
			list = append(list, i)
		}
	}
	return list
}

func (c *Cache) rebuildLocked(s *framework.Snapshot) {
	for _, n := range c.nodes.Entries {
		n.position, n.changed = -1, false
	}
	clear(c.changed)
	c.changed, c.reordered = c.changed[:0], false
	s.Nodes, s.Generations, s.Position = nil, nil, make(map[string]int, len(c.nodes.Entries))
	for _, name := range c.zones.order() {
		n := c.nodes.Entries[name]
		n.position, n.published = len(s.Nodes), true
		s.Position[name] = n.position
		s.Nodes = append(s.Nodes, n.info)
		s.Generations = append(s.Generations, n.info.Generation)
	}
	s.Slots = c.slots
	s.WithAffinity = positions(s, func(n *framework.NodeInfo) bool { return len(n.PodsWithAffinity) > 0 })
	s.WithRequiredAntiAffinity = positions(s, func(n *framework.NodeInfo) bool { return len(n.PodsWithRequiredAntiAffinity) > 0 })
}

// zones are the nodes that exist by zone, in the order in which they came.
type zones struct {
	keys  []string
	nodes map[string][]string
}

// set moves a node from where old is to where new is; either may be nil. It says whether anything
// changed.
func (z *zones) set(old, new *v1.Node) bool {
	if old != nil && new != nil && topology.GetZoneKey(old) == topology.GetZoneKey(new) {
		return false
	}
	if old != nil {
		key := topology.GetZoneKey(old)
		z.nodes[key] = slices.DeleteFunc(z.nodes[key], func(n string) bool { return n == old.Name })
		if len(z.nodes[key]) == 0 {
			delete(z.nodes, key)
			z.keys = slices.DeleteFunc(z.keys, func(k string) bool { return k == key })
		}
	}
	if new != nil {
		key := topology.GetZoneKey(new)
		if z.nodes == nil {
			z.nodes = make(map[string][]string)
		}
		if len(z.nodes[key]) == 0 {
			z.keys = append(z.keys, key)
		}
		z.nodes[key] = append(z.nodes[key], new.Name)
	}
	return true
}

// order returns all nodes, taking one of each zone in turn, so that the nodes tried first are
// spread.
func (z *zones) order() []string {
	var all []string
	for i := 0; ; i++ {
		more := false
		for _, key := range z.keys {
			if nodes := z.nodes[key]; i < len(nodes) {
				all = append(all, nodes[i])
				more = true
			}
		}
		if !more {
			return all
		}
	}
}
