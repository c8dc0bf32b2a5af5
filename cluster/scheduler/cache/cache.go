// Package cache knows the nodes, the pods on them and the pods that will be once they are bound,
// and hands the scheduler a snapshot of all that for each cycle.
//
// A pod is assumed on a node as soon as the scheduler has chosen it, so that the next cycle counts
// it. From there it is either forgotten, because binding it failed, or confirmed by the informer's
// event that it is on the node:
//
//	(none) ─Assume─► assumed ─AddPod─► on its node ─RemovePod─► (none)
//	                    └──Forget──► (none)
//
// What events and assumptions change is a NodeInfo that no snapshot has; one that a snapshot has is
// copied first. So a snapshot never changes under its reader, and bringing it up to date costs as
// much as has changed since, not as much as there is. Most updates of pods report status, and
// change nothing at all (framework.PodInfo.SameToScheduling).
//
// A node that is gone stays, invisible, while pods of it are known, since the two informers are not
// in step.
package cache

import (
	"fmt"
	"log/slog"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/coracle-project/coracle/cluster/internal/shrink"
	"github.com/coracle-project/coracle/cluster/scheduler/framework"
)

// Cache is safe for concurrent use.
type Cache struct {
	log *slog.Logger

	mu     sync.Mutex
	nodes  shrink.Map[string, *node]
	pods   shrink.Map[types.UID, *placed]
	images map[string]*framework.ImageState
	zones  zones
	// reordered is that nodes came or went since the last snapshot, changed which are different.
	reordered bool
	changed   []*node
	freeSlots []int
	slots     int
	// generations numbers the changes of nodes.
	generations framework.Generations
}

// node is a node that exists or has pods.
type node struct {
	name string
	info *framework.NodeInfo
	// published is that a snapshot has info, changed that it is in Cache.changed.
	published, changed bool
	// position is where the node is in the snapshot, -1 if it is not.
	position int
}

// placed is a pod on a node.
type placed struct {
	info    *framework.PodInfo
	node    string
	assumed bool
}

// New returns an empty cache.
func New(log *slog.Logger) *Cache {
	return &Cache{
		log:   log,
		nodes: shrink.New[string, *node](), pods: shrink.New[types.UID, *placed](), images: make(map[string]*framework.ImageState),
	}
}

// Assume puts pod, which is about to be bound, on the node that its spec names.
func (c *Cache) Assume(pod *framework.PodInfo) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := pod.Pod()
	if c.pods.Entries[p.UID] != nil {
		return fmt.Errorf("pod %s/%s is on a node already, so it can't be assumed", p.Namespace, p.Name)
	}
	c.putLocked(pod, true)
	return nil
}

// Forget takes an assumed pod away again. It does nothing if the pod is not assumed any more.
func (c *Cache) Forget(uid types.UID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if p := c.pods.Entries[uid]; p != nil && p.assumed {
		c.takeLocked(uid, p)
	}
}

// Assumed returns a pod if it is assumed, or nil.
func (c *Cache) Assumed(uid types.UID) *framework.PodInfo {
	c.mu.Lock()
	defer c.mu.Unlock()
	if p := c.pods.Entries[uid]; p != nil && p.assumed {
		return p.info
	}
	return nil
}

// SetPod adds, confirms or updates a pod that is on a node.
func (c *Cache) SetPod(pod *v1.Pod) {
	info := framework.NewPodInfo(pod)
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.pods.Entries[pod.UID]
	if p == nil {
		c.putLocked(info, false)
		return
	}
	if p.node == pod.Spec.NodeName && p.info.SameToScheduling(info) {
		p.assumed = false
		p.info.SetPod(pod)
		return
	}
	c.takeLocked(pod.UID, p)
	c.putLocked(info, false)
}

// RemovePod removes a pod. It reports whether the pod was known.
func (c *Cache) RemovePod(uid types.UID) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.pods.Entries[uid]
	if p == nil {
		return false
	}
	c.takeLocked(uid, p)
	return true
}

func (c *Cache) putLocked(info *framework.PodInfo, assumed bool) {
	p := info.Pod()
	c.pods.Entries[p.UID] = &placed{info: info, node: p.Spec.NodeName, assumed: assumed}
	c.editLocked(c.nodeLocked(p.Spec.NodeName)).Add(info)
}

func (c *Cache) takeLocked(uid types.UID, p *placed) {
	c.pods.Delete(uid)
	n := c.nodes.Entries[p.node]
	if err := c.editLocked(n).Remove(p.info); err != nil {
		c.log.Error("scheduler cache", "node", p.node, "err", err)
	}
	c.dropIfEmptyLocked(n)
}

// SetNode adds or updates a node.
func (c *Cache) SetNode(obj *v1.Node) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := c.nodeLocked(obj.Name)
	info := c.editLocked(n)
	old := info.Node()
	c.removeImagesLocked(info.Images)
	info.Images = c.addImagesLocked(obj)
	info.SetNode(obj)
	if c.zones.set(old, obj) {
		c.reordered = true
	}
}

// RemoveNode removes a node.
func (c *Cache) RemoveNode(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := c.nodes.Entries[name]
	if n == nil || n.info.Node() == nil {
		return
	}
	info := c.editLocked(n)
	c.removeImagesLocked(info.Images)
	c.zones.set(info.Node(), nil)
	c.reordered = true
	info.SetNode(nil)
	info.Images = nil
	c.dropIfEmptyLocked(n)
}

// nodeLocked returns the node of that name, made if it is not known yet.
func (c *Cache) nodeLocked(name string) *node {
	n := c.nodes.Entries[name]
	if n == nil {
		slot := c.slots
		if last := len(c.freeSlots) - 1; last >= 0 {
			slot, c.freeSlots = c.freeSlots[last], c.freeSlots[:last]
		} else {
			c.slots++
		}
		n = &node{name: name, info: framework.NewNodeInfo(slot, &c.generations), position: -1}
		c.nodes.Entries[name] = n
	}
	return n
}

func (c *Cache) dropIfEmptyLocked(n *node) {
	if n.info.Node() == nil && len(n.info.Pods) == 0 {
		c.nodes.Delete(n.name)
		c.freeSlots = append(c.freeSlots, n.info.Slot)
	}
}

// editLocked returns n's info for changing: a copy if a snapshot has it.
func (c *Cache) editLocked(n *node) *framework.NodeInfo {
	if n.published {
		n.info = n.info.Clone()
		n.published = false
	}
	if !n.changed {
		n.changed = true
		c.changed = append(c.changed, n)
	}
	return n.info
}

// addImagesLocked returns the states of the images that obj has, which now is one more node of
// theirs.
func (c *Cache) addImagesLocked(obj *v1.Node) map[string]*framework.ImageState {
	images := make(map[string]*framework.ImageState)
	for _, image := range obj.Status.Images {
		for _, name := range image.Names {
			if images[name] != nil {
				continue
			}
			state := c.images[name]
			if state == nil {
				state = &framework.ImageState{Size: image.SizeBytes}
				c.images[name] = state
			}
			state.Nodes.Add(1)
			images[name] = state
		}
	}
	return images
}

func (c *Cache) findImage(name string) *framework.ImageState {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.images[name]
}

func (c *Cache) removeImagesLocked(images map[string]*framework.ImageState) {
	for name, state := range images {
		if state.Nodes.Add(-1) == 0 {
			delete(c.images, name)
		}
	}
}
