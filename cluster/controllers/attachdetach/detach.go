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
	nodeutil "k8s.io/kubernetes/pkg/util/node"

	"github.com/coracle-project/coracle/cluster/controllers/internal/freshness"
)

const (
	// forceAfter is how long a node that is not ready, or gone, may keep a volume that no pod of it
	// needs: upstream's default.
	forceAfter = 6 * time.Minute
	// settle is how long a node that is ready has to have existed until its silence about a volume
	// that was attached before counts. Its kubelet writes what it uses within seconds. An attachment
	// that is younger may be of a PersistentVolume that the cache does not show yet.
	settle = time.Minute
)

// leaving is an attachment that is to go.
type leaving struct {
	attachment *storagev1.VolumeAttachment
	volume     volume
	forced     bool // whatever the node says
}

// syncNode writes to a node's status which volumes are attached, and deletes attachments that it
// does not need and does not use.
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
	s := &nodeSync{controller: c, key: key, name: name, node: node, late: map[string]overdue{}}
	for _, obj := range attachments {
		a := obj.(*storagev1.VolumeAttachment)
		if s.tooYoung(a) {
			continue
		}
		if err := s.attachment(a); err != nil {
			return err
		}
	}
	if err := c.unanswered(node, s.late); err != nil {
		return err
	}
	c.keepOverdue(name, s.late)
	return c.apply(ctx, key, node, s.attached, s.leave)
}

// nodeSync is what is found out about the attachments of a node.
type nodeSync struct {
	*controller
	key, name string
	node      *corev1.Node // nil if it is gone
	attached  []volume
	leave     []leaving
	late      map[string]overdue
}

// attachment decides about one attachment.
func (s *nodeSync) attachment(a *storagev1.VolumeAttachment) error {
	v, kept, known := s.known(a)
	if !known && (s.node != nil || !s.abandoned(a)) || a.DeletionTimestamp != nil {
		return nil
	}
	needed, err := s.needed(v, s.name)
	if err != nil {
		return err
	}
	// One whose PersistentVolume is gone is made again for the one that pods use now.
	needed = needed && kept
	l, now := leaving{attachment: a, volume: v}, false
	if !needed {
		l.forced, now = s.mayLeave(a, v)
	}
	if now {
		s.leave = append(s.leave, l)
	}
	// What only the node knows must not be forgotten before it is deleted. No pod can use it.
	if known && a.Status.Attached && (!now || !kept) {
		s.attached = append(s.attached, v)
	}
	if !known || s.node == nil || needed || now {
		return nil
	}
	idle, err := s.idle(s.node, a, v, kept)
	if idle && err == nil {
		l.forced = true
		s.leave = append(s.leave, l)
	}
	return err
}

// tooYoung reports whether an attachment is so young that its PersistentVolume may be yet to be
// seen, and of another volume. Then what the node's status says of ours stays, until it is older.
func (s *nodeSync) tooYoung(a *storagev1.VolumeAttachment) bool {
	left := settle - time.Since(a.CreationTimestamp.Time)
	if s.node == nil || left <= 0 || a.DeletionTimestamp != nil {
		return false
	}
	v, kept, known := s.known(a)
	if !known || kept {
		return false
	}
	if slices.Contains(reported(s.node), v) {
		s.attached = append(s.attached, v)
	}
	s.frame.AddAfter(s.key, left)
	return true
}

// mayLeave is the function of that name. It has the node looked at again if time decides.
func (s *nodeSync) mayLeave(a *storagev1.VolumeAttachment, v volume) (forced, now bool) {
	if s.node == nil || !nodeutil.IsNodeReady(s.node) {
		s.late[a.Name] = s.overdueSince(s.name, a.Name, a.UID)
	}
	forced, now, again := mayLeave(s.node, a, v, s.late[a.Name].since)
	if again > 0 {
		s.frame.AddAfter(s.key, again)
	}
	return forced, now
}

// idle reports whether an attachment has no part in what its node reports of the volume: it was
// never attached, so no kubelet has mounted the volume because of it. The kubelet waits for the
// attachment of another PersistentVolume, or the driver needs none any more.
func (c *controller) idle(node *corev1.Node, a *storagev1.VolumeAttachment, v volume, kept bool) (bool, error) {
	if a.Status.Attached || slices.Contains(reported(node), v) {
		return false, nil
	}
	attachable, err := c.attachable(v.driver)
	return !kept || !attachable, err
}

// unanswered adds to late the volumes that a node which is not ready reports in use, and does not
// need: their attachments may have been removed by force. When their time is over, others may have
// them.
func (c *controller) unanswered(node *corev1.Node, late map[string]overdue) error {
	if node == nil || nodeutil.IsNodeReady(node) {
		return nil
	}
	for _, v := range inUse(node) {
		attachment := v.attachment(node.Name)
		if _, known := late[attachment]; known {
			continue
		}
		needed, err := c.needed(v, node.Name)
		if err != nil {
			return err
		}
		if needed {
			continue
		}
		since := c.overdueSince(node.Name, attachment, "")
		late[attachment] = since
		if left := forceAfter - time.Since(since.since); left > 0 {
			c.frame.AddAfter(v.key(), left)
		}
	}
	return nil
}

// forfeited reports whether what a node reports of a volume that it does not need does not count
// any more: the node is out of service, or has not been ready for long.
func (c *controller) forfeited(node *corev1.Node, v volume) bool {
	return outOfService(node) || !nodeutil.IsNodeReady(node) &&
		time.Since(c.overdueSince(node.Name, v.attachment(node.Name), "").since) >= forceAfter
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
	if node == nil || !nodeutil.IsNodeReady(node) {
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

// older reports whether an attachment may have been made before its node's object. The object was
// then made again, and that it does not report the volume means nothing until its kubelet has
// reported. Times of objects are in seconds: of two in the same second, either may be older.
func older(a *storagev1.VolumeAttachment, node *corev1.Node) bool {
	return !a.CreationTimestamp.After(node.CreationTimestamp.Time)
}

// outOfService reports whether an administrator declared that a node is off.
func outOfService(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Spec.Taints, func(taint corev1.Taint) bool { return taint.Key == corev1.TaintNodeOutOfService })
}

// report writes what is attached to a node, and returns the node as it is then; nil if it has gone.
// If something leaves (fresh), it is written in any case: the cached node may be older than another
// write.
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
	err := c.set.Kube.StorageV1().VolumeAttachments().Delete(ctx, a.Name,
		metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(a.UID))})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete volumeattachment %s of node %q: %w", a.Name, a.Spec.NodeName, err)
	}
	c.writes.Deleted(key, c.attachmentIndex, a)
	return nil
}

// overdueSince returns since when a node that does not answer has had a volume, by the name of its
// attachment, that it does not need. A further attachment of the volume begins its own time; one
// that is gone ("") does not.
func (c *controller) overdueSince(node, name string, attachment types.UID) overdue {
	c.mu.Lock()
	defer c.mu.Unlock()
	was, known := c.overdue[node][name]
	if !known || attachment != "" && was.attachment != "" && was.attachment != attachment {
		return overdue{attachment, time.Now()}
	}
	if attachment != "" {
		was.attachment = attachment
	}
	return was
}

// keepOverdue replaces what is known of a node.
func (c *controller) keepOverdue(node string, late map[string]overdue) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(late) == 0 {
		delete(c.overdue, node)
		return
	}
	c.overdue[node] = late
}
