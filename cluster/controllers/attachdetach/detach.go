package attachdetach

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/coracle-project/coracle/cluster/controllers/internal/freshness"
)

const (
	// forceAfter is how long a node that is not ready, or gone, may keep a volume that no pod of it
	// needs: upstream's default.
	forceAfter = 6 * time.Minute
	// settle is how long a node that is ready has to have existed until its silence about a volume that
	// was attached before counts. Its kubelet writes what it uses within seconds.
	settle = time.Minute
)

// leaving is an attachment that is to go.
type leaving struct {
	attachment *storagev1.VolumeAttachment
	volume     volume
	forced     bool // whatever the node says
}

// syncNode writes to a node's status which volumes are attached, and deletes attachments that it does
// not need and does not use.
func (c *controller) syncNode(ctx context.Context, key, name string) error {
	node, err := c.nodes.Get(name)
	if err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	if err != nil {
		node = nil
	}
	attachments, err := c.attachmentIndex.ByIndex(byNode, name)
	if err != nil {
		return err
	}
	var attached []volume
	var leave []leaving
	overdue := map[types.UID]time.Time{}
	for _, obj := range attachments {
		a := obj.(*storagev1.VolumeAttachment)
		v, kept, known := c.known(a)
		if !known || a.DeletionTimestamp != nil {
			continue
		}
		needed, err := c.needed(v, name)
		if err != nil {
			return err
		}
		// One whose PersistentVolume is gone is made again for the one that pods use now.
		needed = needed && kept
		l, now := leaving{attachment: a, volume: v}, false
		if !needed {
			if node == nil || !ready(node) {
				overdue[a.UID] = c.overdueSince(name, a.UID)
			}
			var again time.Duration
			if l.forced, now, again = mayLeave(node, a, v, overdue[a.UID]); again > 0 {
				c.frame.AddAfter(key, again)
			}
		}
		if now {
			leave = append(leave, l)
		}
		// What only the node knows must not be forgotten before it is deleted. No pod can use it.
		if a.Status.Attached && (!now || !kept) {
			attached = append(attached, v)
		}
	}
	c.keepOverdue(name, overdue)
	return c.apply(ctx, key, node, attached, leave)
}

// apply first writes what is attached, then deletes.
func (c *controller) apply(ctx context.Context, key string, node *corev1.Node, attached []volume, leave []leaving) error {
	now := (*corev1.Node)(nil)
	if node != nil {
		var err error
		if now, err = c.report(ctx, key, node, attached, len(leave) > 0); err != nil {
			return err
		}
		if now == nil {
			return nil // it has gone: its event wakes this key
		}
	}
	var errs []error
	for _, l := range leave {
		if !l.forced && (now == nil || now.UID != node.UID || slices.Contains(inUse(now), l.volume)) {
			// The kubelet was faster. The node's event wakes this key.
			c.frame.AddAfter(key, freshness.Patience)
			continue
		}
		errs = append(errs, c.delete(ctx, key, l))
	}
	return errors.Join(errs...)
}

// needed reports whether a pod of a node needs v to be attached to it.
func (c *controller) needed(v volume, node string) (bool, error) {
	needs, err := c.needs(v)
	if err != nil || len(needs[node]) == 0 {
		return false, err
	}
	return c.attachable(v.driver)
}

// mayLeave says whether an attachment that no pod needs may be deleted now, and if so whether in
// spite of what the node says. If it depends on time only, again is when to ask again.
func mayLeave(node *corev1.Node, a *storagev1.VolumeAttachment, v volume, overdue time.Time) (forced, now bool, again time.Duration) {
	if node != nil && outOfService(node) {
		return true, true, 0
	}
	if node == nil || !ready(node) {
		left := forceAfter - time.Since(overdue)
		if left <= 0 {
			return true, true, 0
		}
		if node == nil || slices.Contains(inUse(node), v) || older(a, node) {
			return false, false, left
		}
		return false, true, 0
	}
	switch age := time.Since(node.CreationTimestamp.Time); {
	case slices.Contains(inUse(node), v):
		return false, false, 0
	case older(a, node) && age < settle:
		return false, false, settle - age
	}
	return false, true, 0
}

// older reports whether an attachment was made before its node's object. The object was then made
// again, and that it does not report the volume means nothing until its kubelet has had its say.
func older(a *storagev1.VolumeAttachment, node *corev1.Node) bool {
	return a.CreationTimestamp.Time.Before(node.CreationTimestamp.Time)
}

// outOfService reports whether an administrator declared that a node is off.
func outOfService(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Spec.Taints, func(taint corev1.Taint) bool { return taint.Key == corev1.TaintNodeOutOfService })
}

// report writes what is attached to a node, and returns the node as it is then; nil if it has gone.
// If something leaves (fresh), it is written in any case: the cached node may be older than another write.
func (c *controller) report(ctx context.Context, key string, node *corev1.Node, attached []volume, fresh bool) (*corev1.Node, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	list := []corev1.AttachedVolume{}
	for _, other := range node.Status.VolumesAttached {
		if !strings.HasPrefix(string(other.Name), uniquePrefix) {
			list = append(list, other)
		}
	}
	slices.SortFunc(attached, func(a, b volume) int { return strings.Compare(string(a.unique()), string(b.unique())) })
	for _, v := range attached {
		list = append(list, corev1.AttachedVolume{Name: v.unique()})
	}
	nodes := c.set.Kube.CoreV1().Nodes()
	if !fresh && equality.Semantic.DeepEqual(list, node.Status.VolumesAttached) {
		return node, nil
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": node.UID}, "status": map[string]any{"volumesAttached": list},
	})
	if err != nil {
		return nil, err
	}
	now, err := nodes.Patch(ctx, node.Name, types.MergePatchType, patch, metav1.PatchOptions{}, "status")
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("write the attached volumes of node %q: %w", node.Name, err)
	}
	c.writes.Wrote(key, c.nodeIndex, now.ResourceVersion)
	return now, nil
}

func (c *controller) delete(ctx context.Context, key string, l leaving) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	a := l.attachment
	err := c.set.Kube.StorageV1().VolumeAttachments().Delete(ctx, a.Name, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(a.UID))})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("detach %s from node %q: %w", l.volume.unique(), a.Spec.NodeName, err)
	}
	c.writes.Deleted(key, c.attachmentIndex, a)
	return nil
}

// overdueSince returns since when an attachment has not been needed on a node that does not answer.
func (c *controller) overdueSince(node string, attachment types.UID) time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	if since, known := c.overdue[node][attachment]; known {
		return since
	}
	return time.Now()
}

// keepOverdue replaces what is known of a node.
func (c *controller) keepOverdue(node string, overdue map[types.UID]time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(overdue) == 0 {
		delete(c.overdue, node)
		return
	}
	c.overdue[node] = overdue
}
