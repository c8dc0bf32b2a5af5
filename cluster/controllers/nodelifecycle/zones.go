package nodelifecycle

import (
	"time"

	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/node/topology"
)

const (
	// normalRate is how many nodes per second of a zone may get a NoExecute taint.
	normalRate = rate.Limit(0.1)
	// partialRate is that of a large zone with many nodes away. In a small one there is none.
	partialRate = rate.Limit(0.01)
	// largeZone is how many nodes a zone must have more of to be large.
	largeZone = 50
	// unhealthyShare is which share of a zone's nodes, if more than two, must be away for many.
	unhealthyShare = 0.55

	// settle is how long a node must have been away before it is tainted, so that others that went
	// with it are known when its zone is judged: upstream's pause between two looks at all nodes.
	settle = 5 * time.Second

	excludeLabel = "node.kubernetes.io/exclude-disruption"
)

type zoneState int

const (
	normal zoneState = iota
	partial
	down // no node of it is ready
)

// zone is a set of nodes that fail together.
type zone struct {
	state   zoneState
	limiter *rate.Limiter
	// waiting are the nodes to be looked at when the limit is lifted.
	waiting map[string]bool
}

func zoneOf(node *corev1.Node) string { return topology.GetZoneKey(node) }

func isExcluded(node *corev1.Node) bool {
	_, excluded := node.Labels[excludeLabel]
	return excluded
}

// stateOf judges a zone by how many of its nodes are ready.
func stateOf(ready, away int) zoneState {
	switch {
	case ready == 0 && away > 0:
		return down
	case away > 2 && float64(away)/float64(away+ready) >= unhealthyShare:
		return partial
	}
	return normal
}

// share is what a node adds to the state of its zone.
type share struct {
	looked          bool // as of a look at it, not only as of the cache
	zone            string
	excluded, ready bool
}

// count is how many nodes of a zone are ready, and how many are not.
type count struct{ ready, away int }

// came counts nodes that were not looked at yet as the cache has them, so that the first ones that
// are looked at are not taken for all of their zone.
func (c *controller) came(old, obj any) []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	node, ok := obj.(*corev1.Node)
	if !ok {
		last, ok := old.(*corev1.Node)
		if !ok {
			return nil
		}
		if !c.shares.Entries[last.Name].looked {
			c.countLocked(last.Name, nil)
		}
		return []string{last.Name} // whose zone is judged then
	}
	if !c.shares.Entries[node.Name].looked {
		c.countLocked(node.Name, &share{zone: zoneOf(node), excluded: isExcluded(node), ready: readyStatus(node) == corev1.ConditionTrue})
	}
	return nil
}

// countLocked makes now a node's share of its zone, nil for a node that is gone. Zones are counted
// by what changes: a list of all nodes for each of a thousand that come takes a second, and leaves
// 100 MB of garbage.
func (c *controller) countLocked(node string, now *share) {
	if before, ok := c.shares.Entries[node]; ok {
		c.addLocked(before, -1)
		c.shares.Delete(node)
	}
	if now != nil {
		c.shares.Entries[node] = *now
		c.addLocked(*now, 1)
	}
}

func (c *controller) addLocked(s share, n int) {
	if s.excluded {
		return
	}
	counted := c.counts[s.zone]
	if s.ready {
		counted.ready += n
	} else {
		counted.away += n
	}
	if counted == (count{}) {
		delete(c.counts, s.zone)
	} else {
		c.counts[s.zone] = counted
	}
}

// recount counts a node that was just looked at, and reports whether that changed its zone. Most
// events of nodes are heartbeats, which change nothing about zones.
func (c *controller) recount(node *corev1.Node) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	h := c.health.Entries[node.Name]
	if h == nil { // removed meanwhile
		return true
	}
	now := share{looked: true, zone: zoneOf(node), excluded: isExcluded(node), ready: h.ready == corev1.ConditionTrue}
	if c.shares.Entries[node.Name] == now {
		return false
	}
	c.countLocked(node.Name, &now)
	return true
}

// judgeZones sets the state of all zones and has nodes looked at whose treatment changes by it:
// those that waited for a zone's limit, and all when every zone went down or came back.
func (c *controller) judgeZones() {
	c.mu.Lock()
	defer c.mu.Unlock()
	wereDown := c.allDownLocked()
	for name := range c.zones {
		if _, ok := c.counts[name]; !ok {
			delete(c.zones, name)
		}
	}
	for name, n := range c.counts {
		z := c.zones[name]
		if z == nil {
			z = &zone{limiter: rate.NewLimiter(normalRate, 1), waiting: map[string]bool{}}
			c.zones[name] = z
		}
		z.state = stateOf(n.ready, n.away)
		limit := normalRate
		if z.state == partial {
			limit = 0
			if n.ready+n.away > largeZone {
				limit = partialRate
			}
		}
		if z.limiter.Limit() == limit {
			continue
		}
		z.limiter.SetLimit(limit)
		if limit > 0 {
			for node := range z.waiting {
				c.frame.Add(node)
			}
			clear(z.waiting)
		}
	}
	nowDown := c.allDownLocked()
	if nowDown == wereDown {
		return
	}
	for name, h := range c.health.Entries {
		if wereDown { // a silence that all shared was ours: all get a new chance
			h.seen = time.Now()
		}
		c.frame.Add(name)
	}
}

// allDown reports whether there is not a single node that is ready.
func (c *controller) allDown() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.allDownLocked()
}

func (c *controller) allDownLocked() bool {
	for _, z := range c.zones {
		if z.state != down {
			return false
		}
	}
	return len(c.zones) > 0
}

// mayTaint takes a node's turn to be tainted in its zone. If it is not its turn it returns after
// how long to ask again, 0 for when the zone's state changes.
func (c *controller) mayTaint(node *corev1.Node) (time.Duration, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if h := c.health.Entries[node.Name]; h != nil {
		if left := settle - time.Since(h.away); left > 0 {
			return left, false
		}
	}
	z := c.zones[zoneOf(node)]
	if z == nil { // only excluded nodes
		return 0, true
	}
	if z.limiter.Limit() == 0 {
		z.waiting[node.Name] = true
		return 0, false
	}
	turn := z.limiter.Reserve()
	if wait := turn.Delay(); wait > 0 {
		turn.Cancel()
		return wait, false
	}
	return 0, true
}
