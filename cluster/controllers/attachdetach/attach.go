package attachdetach

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/kubernetes/pkg/kubelet/events"
)

// maxMessage is how many bytes of a driver's words an Event has at most.
const maxMessage = 1024

// told is what pods know of a volume, so that each thing is said once.
type told struct {
	waits   map[string]bool      // the nodes that it was not attached to yet
	problem map[types.UID]string // what keeps a pod from getting it
}

// round is one sync of a volume.
type round struct {
	*controller
	volume  volume
	needs   map[string][]need
	before  told
	now     told
	holders map[string]bool // the nodes that have it, or may have it
}

// syncVolume makes the attachments of v that pods need, and tells pods how that goes.
func (c *controller) syncVolume(ctx context.Context, key string, v volume) error {
	attachable, err := c.attachable(v.driver)
	if err != nil {
		return err
	}
	r := &round{controller: c, volume: v, now: told{waits: map[string]bool{}, problem: map[types.UID]string{}}}
	if r.needs, err = c.needs(v); err != nil {
		return err
	}
	if !attachable {
		clear(r.needs)
	}
	r.before = c.lastTold(v)
	var errs []error
	if len(r.needs) > 0 {
		volumes, err := c.ofUnique(v)
		if err != nil {
			return err
		}
		if r.holders, err = r.held(); err != nil {
			return err
		}
		for _, node := range r.byAge() {
			errs = append(errs, r.attach(ctx, key, node, exclusive(volumes)))
		}
	}
	c.tell(v, r.now)
	return errors.Join(errs...)
}

// byAge returns the nodes that need the volume, those of the oldest pods first. The order decides who
// gets a volume that only one node can have.
func (r *round) byAge() []string {
	oldest := func(node string) need {
		return slices.MinFunc(r.needs[node], func(a, b need) int {
			return a.pod.CreationTimestamp.Compare(b.pod.CreationTimestamp.Time)
		})
	}
	return slices.SortedFunc(maps.Keys(r.needs), func(a, b string) int {
		return cmp.Or(oldest(a).pod.CreationTimestamp.Compare(oldest(b).pod.CreationTimestamp.Time), cmp.Compare(a, b))
	})
}

// held returns the nodes that have an attachment of the volume, in whatever state, and those that
// answer and say that they use it: their attachment may have been removed by force. Kubelets say so
// of volumes that they wait for, too: a node without an attachment whose pods need one only waits.
func (r *round) held() (map[string]bool, error) {
	nodes := map[string]bool{}
	// Not by PersistentVolume: the one that an attachment was made for may be gone.
	attachments, err := r.attachmentIndex.ByIndex(byAttacher, r.volume.driver)
	if err != nil {
		return nil, err
	}
	for _, obj := range attachments {
		if a := obj.(*storagev1.VolumeAttachment); r.volume.named(a) {
			nodes[a.Spec.NodeName] = true
		}
	}
	reporting, err := r.nodeIndex.ByIndex(byVolume, string(r.volume.unique()))
	if err != nil {
		return nil, err
	}
	for _, obj := range reporting {
		node := obj.(*corev1.Node)
		if ready(node) && slices.Contains(inUse(node), r.volume) && len(r.needs[node.Name]) == 0 {
			nodes[node.Name] = true
		}
	}
	return nodes, nil
}

// attach has the volume attached to one node.
func (r *round) attach(ctx context.Context, key, node string, exclusive bool) error {
	a, err := r.attachments.Get(r.volume.attachment(node))
	if err == nil {
		return r.progress(a, node)
	}
	if !apierrors.IsNotFound(err) {
		return err
	}
	if _, err := r.nodes.Get(node); err != nil {
		if apierrors.IsNotFound(err) {
			return nil // its event comes with the node
		}
		return err
	}
	others := slices.DeleteFunc(slices.Sorted(maps.Keys(r.holders)), func(other string) bool { return other == node })
	if exclusive && len(others) > 0 {
		r.now.waits[node] = true
		r.occupied(node, others)
		return nil
	}
	return r.create(ctx, key, node)
}

// progress looks at an attachment that exists.
func (r *round) progress(a *storagev1.VolumeAttachment, node string) error {
	if !r.same(a, r.volume, node) {
		r.taken(a, node)
		return nil
	}
	switch failure := a.Status.AttachError; {
	case a.DeletionTimestamp != nil: // it is made again when it is gone
		r.now.waits[node] = true
	case a.Status.Attached:
		if r.before.waits[node] {
			for _, n := range r.needs[node] {
				r.events.Event(n.pod, corev1.EventTypeNormal, events.SuccessfulAttachVolume, about("AttachVolume.Attach succeeded", n, ""))
			}
		}
	case failure != nil:
		r.now.waits[node] = true
		for _, n := range r.needs[node] {
			message := about("AttachVolume.Attach failed", n, ": "+shortened(failure.Message))
			r.warn(n, failure.Time.UTC().String()+message, message)
		}
	default:
		r.now.waits[node] = true
	}
	return nil
}

// create makes the attachment.
func (r *round) create(ctx context.Context, key, node string) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	client, pv := r.set.Kube.StorageV1().VolumeAttachments(), r.needs[node][0].volume.Name
	r.now.waits[node], r.holders[node] = true, true
	a, err := client.Create(ctx, &storagev1.VolumeAttachment{
		ObjectMeta: metav1.ObjectMeta{Name: r.volume.attachment(node)},
		Spec: storagev1.VolumeAttachmentSpec{
			Attacher: r.volume.driver, NodeName: node,
			Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &pv},
		},
	}, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		if a, err = client.Get(ctx, r.volume.attachment(node), metav1.GetOptions{}); apierrors.IsNotFound(err) {
			return fmt.Errorf("volumeattachment %s to node %q went while it was made", r.volume.attachment(node), node)
		}
	}
	if err != nil {
		for _, n := range r.needs[node] {
			message := about("AttachVolume.Attach failed", n, ": "+shortened(err.Error()))
			r.warn(n, message, message)
		}
		return fmt.Errorf("attach %s to node %q: %w", r.volume.unique(), node, err)
	}
	if !r.same(a, r.volume, node) {
		r.taken(a, node)
		return nil
	}
	r.writes.Wrote(key, r.attachmentIndex, a.ResourceVersion)
	return nil
}

// taken tells pods that someone else's object has the name that theirs would have.
func (r *round) taken(a *storagev1.VolumeAttachment, node string) {
	r.now.waits[node] = true
	source := "no PersistentVolume"
	if a.Spec.Source.PersistentVolumeName != nil {
		source = fmt.Sprintf("PersistentVolume %q", *a.Spec.Source.PersistentVolumeName)
	}
	for _, n := range r.needs[node] {
		r.warn(n, "taken", about("AttachVolume.Attach failed", n, fmt.Sprintf(
			": VolumeAttachment %s is of %s, node %q and attacher %q: delete it to have this volume attached",
			a.Name, source, a.Spec.NodeName, a.Spec.Attacher)))
	}
}

// occupied tells the pods of a node that others have the volume. Names of pods are told within a
// namespace only.
func (r *round) occupied(node string, others []string) {
	var using []*corev1.Pod
	for _, other := range others {
		for _, n := range r.needs[other] {
			using = append(using, n.pod)
		}
	}
	for _, n := range r.needs[node] {
		var names []string
		for _, pod := range using {
			if pod.Namespace == n.pod.Namespace {
				names = append(names, pod.Name)
			}
		}
		slices.Sort(names)
		why, elsewhere := "Volume is already exclusively attached to one node and can't be attached to another", len(using)-len(names)
		switch {
		case len(names) > 0 && elsewhere > 0:
			why = fmt.Sprintf("Volume is already used by pod(s) %s and %d pod(s) in different namespaces", strings.Join(names, ", "), elsewhere)
		case len(names) > 0:
			why = "Volume is already used by pod(s) " + strings.Join(names, ", ")
		case elsewhere > 0:
			why = fmt.Sprintf("Volume is already used by %d pod(s) in different namespaces", elsewhere)
		}
		r.warn(n, "occupied", about("Multi-Attach error", n, shortened(why)))
	}
}

// about is a message of a volume, as upstream words it.
func about(what string, n need, why string) string {
	return fmt.Sprintf("%s for volume %q %s", what, n.volume.Name, why)
}

// warn tells a pod of a problem, once: again after another one.
func (r *round) warn(n need, problem, message string) {
	r.now.problem[n.pod.UID] = problem
	if r.before.problem[n.pod.UID] != problem {
		r.events.Event(n.pod, corev1.EventTypeWarning, events.FailedAttachVolume, message)
	}
}

func shortened(message string) string {
	if len(message) <= maxMessage {
		return message
	}
	return strings.ToValidUTF8(message[:maxMessage], "") + "…"
}

func (c *controller) lastTold(v volume) told {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.told[v]
}

func (c *controller) tell(v volume, now told) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(now.waits)+len(now.problem) == 0 {
		delete(c.told, v)
		return
	}
	c.told[v] = now
}
