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
	using   []*corev1.Node  // the nodes whose kubelets report that it is in use
	// doubtful are attachments that have the name of ours and are, or may be, another's.
	doubtful map[string]sight
}

// sight is what the caches show of an attachment.
type sight struct {
	attachment *storagev1.VolumeAttachment // nil if it is not there
	orphan     bool                        // there is no PersistentVolume of the name that it has
}

func (c *controller) sight(name string) sight {
	a, err := c.attachments.Get(name)
	if err != nil {
		return sight{}
	}
	return sight{a, c.orphan(a)}
}

// syncVolume makes the attachments of v that pods need, and tells pods how that goes.
func (c *controller) syncVolume(ctx context.Context, key string, v volume) error {
	attachable, err := c.attachable(v.driver)
	if err != nil {
		return err
	}
	r := &round{
		controller: c, volume: v, holders: map[string]bool{}, doubtful: map[string]sight{},
		now: told{waits: map[string]bool{}, problem: map[types.UID]string{}},
	}
	if err := r.ask(ctx, key); err != nil {
		return err
	}
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
		if r.using, err = c.using(v); err != nil {
			return err
		}
		if err := r.held(); err != nil {
			return err
		}
		for _, node := range r.order() {
			errs = append(errs, r.attach(ctx, key, node, exclusive(volumes)))
		}
	}
	c.tell(v, r.now)
	// Events of doubtful attachments find this volume by what it has told. An event that came before
	// that has not found it. So look again.
	for name, seen := range r.doubtful {
		if c.sight(name) != seen {
			c.frame.Add(key)
		}
	}
	return errors.Join(errs...)
}

// order returns the nodes that need the volume, those of the oldest pods first. The order decides
// who gets a volume that only one node can have. Nodes that report the volume in use come before
// all others: one of them may have it mounted, if its attachment was removed by force.
func (r *round) order() []string {
	uses := map[string]int{}
	for _, node := range r.using {
		uses[node.Name] = 1
	}
	oldest := func(node string) need {
		return slices.MinFunc(r.needs[node], func(a, b need) int {
			return a.pod.CreationTimestamp.Compare(b.pod.CreationTimestamp.Time)
		})
	}
	return slices.SortedFunc(maps.Keys(r.needs), func(a, b string) int {
		return cmp.Or(
			cmp.Compare(uses[b], uses[a]),
			oldest(a).pod.CreationTimestamp.Compare(oldest(b).pod.CreationTimestamp.Time),
			cmp.Compare(a, b),
		)
	})
}

// using returns the nodes whose kubelets report a volume in use: mounted, or waited for.
func (c *controller) using(v volume) (nodes []*corev1.Node, err error) {
	reporting, err := c.nodeIndex.ByIndex(byVolume, string(v.unique()))
	if err != nil {
		return nil, err
	}
	for _, obj := range reporting {
		if node := obj.(*corev1.Node); slices.Contains(inUse(node), v) {
			nodes = append(nodes, node)
		}
	}
	return nodes, nil
}

// held finds the nodes that have an attachment of the volume, in whatever state, and those that
// report that they use it: their attachment may have been removed by force. Kubelets say so
// of volumes that they wait for, too: a node without an attachment whose pods need one only waits.
func (r *round) held() error {
	// Not by PersistentVolume: the one that an attachment was made for may be gone.
	attachments, err := r.attachmentIndex.ByIndex(byAttacher, r.volume.driver)
	if err != nil {
		return err
	}
	for _, obj := range attachments {
		if a := obj.(*storagev1.VolumeAttachment); r.volume.named(a) {
			r.holders[a.Spec.NodeName] = true
			r.identify(a, a.Spec.NodeName)
		}
	}
	for _, node := range r.using {
		if len(r.needs[node.Name]) == 0 && !r.forfeited(node, r.volume) {
			r.holders[node.Name] = true
		}
	}
	return nil
}

// identify reports whether an attachment with the name of the volume's to a node is that one, and
// whether its PersistentVolume is not there. It notes one that may be another's.
func (r *round) identify(a *storagev1.VolumeAttachment, node string) (same, orphan bool) {
	seen := sight{a, r.orphan(a)}
	same = r.same(a, r.volume, node)
	if seen.orphan || !same {
		r.doubtful[a.Name] = seen
	}
	return same, seen.orphan
}

// ask finds out which attachments have been made whose creation had no clear answer.
func (r *round) ask(ctx context.Context, key string) error {
	for _, node := range r.unsureOf(r.volume) {
		a, err := r.get(ctx, node)
		switch {
		case err == nil:
			r.holders[node] = true
			r.writes.Wrote(key, r.attachmentIndex, a.ResourceVersion)
		case !apierrors.IsNotFound(err):
			return fmt.Errorf("find out whether %s is attached to node %q: %w", r.volume.unique(), node, err)
		}
		r.sure(r.volume, node)
	}
	return nil
}

// get reads the attachment of the volume to a node from the API server.
func (r *round) get(ctx context.Context, node string) (*storagev1.VolumeAttachment, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return r.set.Kube.StorageV1().VolumeAttachments().Get(ctx, r.volume.attachment(node), metav1.GetOptions{})
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
	same, orphan := r.identify(a, node)
	if !same {
		r.taken(a, node)
		return nil
	}
	switch failure := a.Status.AttachError; {
	case orphan && a.DeletionTimestamp == nil: // it leaves, or its PersistentVolume is yet to be seen
		r.now.waits[node] = true
	case a.DeletionTimestamp != nil: // it is made again when it is gone
		r.now.waits[node] = true
		if why := r.undetached(node); why != "" {
			for _, n := range r.needs[node] {
				r.warn(n, why, about("AttachVolume.Attach failed", n, ": "+why))
			}
		}
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
	call, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	pv := r.needs[node][0].volume.Name
	r.now.waits[node], r.holders[node] = true, true
	a, err := r.set.Kube.StorageV1().VolumeAttachments().Create(call, &storagev1.VolumeAttachment{
		ObjectMeta: metav1.ObjectMeta{Name: r.volume.attachment(node)},
		Spec: storagev1.VolumeAttachmentSpec{
			Attacher: r.volume.driver, NodeName: node,
			Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &pv},
		},
	}, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		r.doubtful[r.volume.attachment(node)] = sight{}
		if a, err = r.get(ctx, node); apierrors.IsNotFound(err) {
			return fmt.Errorf("volumeattachment %s to node %q went while it was made", r.volume.attachment(node), node)
		}
	}
	if err != nil {
		if !refused(err) {
			r.notSure(r.volume, node)
		}
		for _, n := range r.needs[node] {
			message := about("AttachVolume.Attach failed", n, ": "+shortened(err.Error()))
			r.warn(n, message, message)
		}
		return fmt.Errorf("attach %s to node %q: %w", r.volume.unique(), node, err)
	}
	r.writes.Wrote(key, r.attachmentIndex, a.ResourceVersion)
	if !r.same(a, r.volume, node) {
		r.taken(a, node)
	}
	return nil
}

// refused reports whether an error of a creation means that nothing was made. A timeout, or a lost
// connection, does not.
func refused(err error) bool {
	return apierrors.IsInvalid(err) || apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) || apierrors.IsBadRequest(err) ||
		apierrors.IsNotFound(err) || apierrors.IsConflict(err) || apierrors.IsTooManyRequests(err) || apierrors.IsRequestEntityTooLargeError(err)
}

// undetached says what keeps a driver from detaching the volume from a node, "" if nothing is
// known.
func (r *round) undetached(node string) string {
	a, err := r.attachments.Get(r.volume.attachment(node))
	if err != nil || a.DeletionTimestamp == nil || a.Status.DetachError == nil {
		return ""
	}
	return fmt.Sprintf("it cannot be detached from node %q: %s", node, shortened(a.Status.DetachError.Message))
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
	undetached := ""
	for _, other := range others {
		for _, n := range r.needs[other] {
			using = append(using, n.pod)
		}
		if undetached == "" {
			undetached = r.undetached(other)
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
		why = shortened(why)
		if undetached != "" {
			why += ": " + undetached
		}
		r.warn(n, "occupied "+undetached, about("Multi-Attach error", n, why))
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

// unsureOf returns the nodes to which an attachment of v may have been made.
func (c *controller) unsureOf(v volume) []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Sorted(maps.Keys(c.unsure[v]))
}

// notSure notes that an attachment of v to a node may have been made.
func (c *controller) notSure(v volume, node string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.unsure[v] == nil {
		c.unsure[v] = map[string]bool{}
	}
	c.unsure[v][node] = true
}

// sure forgets what notSure has noted.
func (c *controller) sure(v volume, node string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.unsure[v], node)
	if len(c.unsure[v]) == 0 {
		delete(c.unsure, v)
	}
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
