package registration

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	storageclient "k8s.io/client-go/kubernetes/typed/storage/v1"

	"github.com/coracle-project/coracle/cluster/internal/mergepatch"
)

// nodeIDs is the annotation of the Node with the drivers' names for it.
const nodeIDs = "csi.volume.kubernetes.io/nodeid"

// A write that failed is tried again after firstWrite, then after twice as long each time.
const (
	firstWrite = time.Second
	lastWrite  = 2 * time.Minute
)

// csiNode keeps this node's CSINode, and the labels and the annotation of its Node, as the drivers
// that are registered want them. What other drivers have written stays.
type csiNode struct {
	r *Registry
	// writing holds one token: its owner writes.
	writing chan struct{}

	mu      sync.Mutex
	closed  bool
	drivers map[string]*driver
	gone    map[string]struct{}
	// owner is the UID of the Node that the CSINode was last made for.
	owner  types.UID
	timers map[string]*time.Timer
	// retry writes again after a failure.
	retry *time.Timer
	wait  time.Duration
}

func newCSINode(r *Registry) *csiNode {
	return &csiNode{
		r: r, writing: make(chan struct{}, 1), drivers: map[string]*driver{}, gone: map[string]struct{}{},
		timers: map[string]*time.Timer{},
	}
}

// close ends all timers.
func (c *csiNode) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	for _, t := range c.timers {
		t.Stop()
	}
	if c.retry != nil {
		c.retry.Stop()
	}
}

// publish writes what the driver has said of this node. It returns when that is in the API.
func (c *csiNode) publish(ctx context.Context, d *driver) error {
	c.mu.Lock()
	before := c.drivers[d.Name]
	_, leaving := c.gone[d.Name]
	c.drivers[d.Name] = d
	delete(c.gone, d.Name)
	c.mu.Unlock()
	refused, err := c.write(ctx)
	if err == nil {
		err = refused[d.Name]
	}
	if err == nil {
		return nil
	}
	c.mu.Lock() // what cannot be written must not keep others from being written
	defer c.mu.Unlock()
	switch {
	case c.drivers[d.Name] != d:
	case before != nil:
		c.drivers[d.Name] = before
	default:
		delete(c.drivers, d.Name)
		if leaving { // the API may still have it
			c.gone[d.Name] = struct{}{}
			c.later()
		}
	}
	return err
}

// withdraw takes what a socket has registered out of the CSINode, in favour of the heir if there is
// another registration of that name. If that fails, it is tried again.
func (c *csiNode) withdraw(name string, s *socket, heir *driver) {
	c.mu.Lock()
	d := c.drivers[name]
	if d != nil && d.from != s {
		c.mu.Unlock()
		return // it has registered again
	}
	if heir != nil {
		c.drivers[name] = heir
	} else {
		delete(c.drivers, name)
		c.gone[name] = struct{}{}
		if t := c.timers[name]; t != nil {
			t.Stop()
			delete(c.timers, name)
		}
	}
	c.mu.Unlock()
	c.later()
}

// nodeIs is told the UID of the Node: one that was deleted and made again needs a new CSINode.
func (c *csiNode) nodeIs(uid types.UID) {
	c.mu.Lock()
	other := len(c.drivers) > 0 && c.owner != "" && c.owner != uid
	c.mu.Unlock()
	if other {
		c.later()
	}
}

// later writes in the background, until that succeeds.
func (c *csiNode) later() {
	c.r.opts.Work.Start(func(ctx context.Context) {
		refused, err := c.write(ctx)
		err = errors.Join(append(slices.Collect(maps.Values(refused)), err)...)
		c.mu.Lock()
		defer c.mu.Unlock()
		if err == nil || c.closed {
			c.wait = 0
			return
		}
		c.r.opts.Log.Warn("csi: the node's drivers are not published yet", "err", err)
		c.wait = min(max(2*c.wait, firstWrite), lastWrite)
		if c.retry != nil {
			c.retry.Stop()
		}
		c.retry = time.AfterFunc(c.wait, c.later)
	})
}

// write brings the objects up to date. Conflicts are tried again with what is there then. It
// returns the drivers that cannot be written, which keep no others from it.
func (c *csiNode) write(ctx context.Context) (refused map[string]error, err error) {
	select {
	case c.writing <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	defer func() { <-c.writing }()
	ctx, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	const tries = 5
	for range tries {
		if refused, err = c.writeOnce(ctx); err == nil || ctx.Err() != nil || !apierrors.IsConflict(err) && !apierrors.IsAlreadyExists(err) &&
			!apierrors.IsNotFound(err) {
			return refused, err
		}
	}
	return refused, err
}

func (c *csiNode) writeOnce(ctx context.Context) (refused map[string]error, err error) {
	c.mu.Lock()
	drivers, gone := maps.Clone(c.drivers), maps.Clone(c.gone)
	c.mu.Unlock()
	node, err := c.r.opts.Kube.CoreV1().Nodes().Get(ctx, c.r.opts.NodeName, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("read node %s: %w", c.r.opts.NodeName, err)
	}
	refused = refuseCollisions(node, drivers)
	if err := c.writeNode(ctx, node, drivers, gone); err != nil {
		return nil, err
	}
	if err := c.writeCSINode(ctx, node, drivers, gone); err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.owner = node.UID
	for name := range gone {
		if _, back := c.drivers[name]; !back {
			delete(c.gone, name)
		}
	}
	return refused, nil
}

// refuseCollisions takes the drivers out of drivers whose topology contradicts the node's labels,
// or that of a driver with an earlier name.
func refuseCollisions(node *v1.Node, drivers map[string]*driver) map[string]error {
	refused := map[string]error{}
	labels := map[string]string{}
	maps.Copy(labels, node.Labels)
	for _, name := range slices.Sorted(maps.Keys(drivers)) {
		topology := drivers[name].Topology
		for _, key := range slices.Sorted(maps.Keys(topology)) {
			if have, is := labels[key]; is && have != topology[key] {
				refused[name] = fmt.Errorf("detected topology value collision: driver %s reported %q:%q but existing label is %q:%q", name, key,
					topology[key], key, have)
			}
		}
		if refused[name] != nil {
			delete(drivers, name)
			continue
		}
		maps.Copy(labels, topology)
	}
	return refused
}

// writeNode sets the topology's labels and the drivers' names for the node.
func (c *csiNode) writeNode(ctx context.Context, old *v1.Node, drivers map[string]*driver, gone map[string]struct{}) error {
	node := old.DeepCopy()
	ids := map[string]string{}
	if was := node.Annotations[nodeIDs]; was != "" {
		if err := json.Unmarshal([]byte(was), &ids); err != nil {
			c.r.opts.Log.Warn("csi: an annotation of the node is damaged and is written again", "annotation", nodeIDs, "err", err)
			ids = map[string]string{}
		}
	}
	maps.DeleteFunc(ids, func(name, _ string) bool { _, is := gone[name]; return is })
	for name, d := range drivers {
		ids[name] = d.NodeID
		for key, value := range d.Topology {
			metav1.SetMetaDataLabel(&node.ObjectMeta, key, value)
		}
	}
	if len(ids) == 0 {
		delete(node.Annotations, nodeIDs)
	} else {
		raw, err := json.Marshal(ids)
		if err != nil {
			return err
		}
		metav1.SetMetaDataAnnotation(&node.ObjectMeta, nodeIDs, string(raw))
	}
	if equality.Semantic.DeepEqual(old, node) {
		return nil
	}
	patch, err := mergepatch.Between(old, node)
	if err != nil {
		return err
	}
	if _, err := c.r.opts.Kube.CoreV1().Nodes().Patch(ctx, node.Name, types.StrategicMergePatchType, patch,
		metav1.PatchOptions{}, "status"); err != nil {
		return fmt.Errorf("write node %s: %w", node.Name, err)
	}
	return nil
}

func (c *csiNode) writeCSINode(ctx context.Context, node *v1.Node, drivers map[string]*driver, gone map[string]struct{}) error {
	objects := c.r.opts.Kube.StorageV1().CSINodes()
	old, err := objects.Get(ctx, node.Name, metav1.GetOptions{})
	missing := apierrors.IsNotFound(err)
	if err != nil && !missing {
		return fmt.Errorf("read csinode %s: %w", node.Name, err)
	}
	if !missing && !slices.ContainsFunc(old.OwnerReferences, func(r metav1.OwnerReference) bool {
		return r.Kind == "Node" && r.UID == node.UID
	}) {
		// It is of a Node that was deleted, with that one's drivers.
		precondition := metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &old.UID}}
		if err := objects.Delete(ctx, old.Name, precondition); err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("delete csinode %s of an earlier node: %w", old.Name, err)
		}
		missing = true
	}
	if missing {
		if len(drivers) == 0 {
			return nil
		}
		old = &storagev1.CSINode{}
		old.Name = node.Name
		old.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID}}
	}
	object := old.DeepCopy()
	object.Spec.Drivers = slices.DeleteFunc(object.Spec.Drivers, func(d storagev1.CSINodeDriver) bool { _, is := gone[d.Name]; return is })
	for _, name := range slices.Sorted(maps.Keys(drivers)) {
		setDriver(object, drivers[name])
	}
	switch {
	case missing:
		_, err = objects.Create(ctx, object, metav1.CreateOptions{})
	case equality.Semantic.DeepEqual(old, object):
		return nil
	default:
		err = updateCSINode(ctx, objects, old, object)
	}
	if err != nil {
		return fmt.Errorf("write csinode %s: %w", node.Name, err)
	}
	return nil
}

// updateCSINode writes object. The API server lets no one change an entry, except what is
// allocatable. So entries that differ in more are removed first.
func updateCSINode(ctx context.Context, objects storageclient.CSINodeInterface, old, object *storagev1.CSINode) error {
	without := old.DeepCopy()
	without.Spec.Drivers = slices.DeleteFunc(without.Spec.Drivers, func(was storagev1.CSINodeDriver) bool {
		at := slices.IndexFunc(object.Spec.Drivers, func(d storagev1.CSINodeDriver) bool { return d.Name == was.Name })
		if at < 0 {
			return false
		}
		is := object.Spec.Drivers[at]
		return is.NodeID != was.NodeID || !slices.Equal(is.TopologyKeys, was.TopologyKeys)
	})
	if len(without.Spec.Drivers) < len(old.Spec.Drivers) {
		written, err := objects.Update(ctx, without, metav1.UpdateOptions{})
		if err != nil {
			return err
		}
		object.ResourceVersion = written.ResourceVersion
	}
	_, err := objects.Update(ctx, object, metav1.UpdateOptions{})
	return err
}

// setDriver puts a driver into its place in the list, or at its end.
func setDriver(object *storagev1.CSINode, d *driver) {
	entry := storagev1.CSINodeDriver{Name: d.Name, NodeID: d.NodeID, TopologyKeys: slices.Sorted(maps.Keys(d.Topology))}
	if d.Limit > 0 {
		limit := int32(min(d.Limit, math.MaxInt32))
		entry.Allocatable = &storagev1.VolumeNodeResources{Count: &limit}
	}
	at := slices.IndexFunc(object.Spec.Drivers, func(e storagev1.CSINodeDriver) bool { return e.Name == d.Name })
	if at < 0 {
		object.Spec.Drivers = append(object.Spec.Drivers, entry)
		return
	}
	if have := object.Spec.Drivers[at].TopologyKeys; slices.Equal(slices.Sorted(slices.Values(have)), entry.TopologyKeys) {
		entry.TopologyKeys = have // their order is no change
	}
	object.Spec.Drivers[at] = entry
}

// follow asks a driver from time to time how many volumes the node can have, if its CSIDriver says
// so.
func (c *csiNode) follow(name string, object *storagev1.CSIDriver) {
	if object == nil || object.Spec.NodeAllocatableUpdatePeriodSeconds == nil {
		return
	}
	period := time.Duration(max(*object.Spec.NodeAllocatableUpdatePeriodSeconds, 10)) * time.Second
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed || c.timers[name] != nil || c.drivers[name] == nil {
		return
	}
	c.timers[name] = time.AfterFunc(period, func() {
		c.mu.Lock()
		delete(c.timers, name)
		c.mu.Unlock()
		c.r.CountAgain(name)
	})
}
